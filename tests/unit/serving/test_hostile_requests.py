"""What strangers may send to the server of predictions: each gets a status and a reason, and costs little."""

import gzip
import json
import re
import tracemalloc

import pytest

from tests.kafka_lab.lab import wait_until
from tests.unit.serving.served import MODEL, answering, classifier
from tests.unit.strangers import HOST, ask, basic, descriptors, raw

INFER = f"{MODEL}/infer"
POST = b"POST /predict HTTP/1.1\r\nConnection: close\r\n" + HOST
GOOD = b'{"size":1}'


def tensors(*names, **parts):
    tensor = {"shape": [1], "datatype": "FP64", "data": [1.0]} | parts
    given = {name: value for name, value in tensor.items() if value is not None}
    return {"inputs": [{"name": name, **given} for name in names or ("size",)]}


def statuses(found):
    return [int(status) for status in re.findall(rb"HTTP/1.1 (\d+)", found)]


REFUSED = [
    (400, "/predict", [b"", b"[" * 500_000, b"[1", b"\xff\xfe{", b"[Infinity]", b"[" + b'{"size":' * 2_000]),
    (413, "/predict", [b"[" * 10_000_000, b"[1" + b",1" * 300_000 + b"]", GOOD + b"\n" + b"{}\n" * 10_000]),
    (422, "/predict", [b"null", b"[]", b"[[1]]", b"{}", b'{"other":1}', b'{"size":[1]}', b'{"size":"1.5"}', b'{"a":1']),
    (422, "/predict", [b'{"size":' + b"[" * 200 + b"]" * 200 + b"}", b'{"size":' * 100_000, b'{"size":Infinity}']),
    (422, "/predict", [b'{"size":1e999}', b'{"size":1' + b"0" * 900_000 + b"}", b'{"colour":"%s"}' % (b"x" * 300)]),
    (422, "/predict", [b'{"colour":"\xff"}', b'{"colour":"\\ud800"}', b'{"\\ud800":1}', b'{"when":"2026-13-01"}']),
    (422, "/predict", [b'{"when":1767225600000}', b'{"size":1e60}', b'[{"size":1},{"size":-1e60}]']),
    (422, "/explain", [b'{"when":1767225600000}']),
    (400, "/predict?interval=nan", [GOOD]),
    (400, "/predict?gate=%ff", [GOOD]),
    (400, INFER, [b"", b"{}", b'{"inputs":' + b"[" * 500_000, b'"' + b'\\"' * 400_000 + b"NaN", b'{"\xff":1}']),
    (400, INFER, [tensors(shape=shape) for shape in ([-1], [10**12], [10**30], [], [1, 2], [1.5], [1, 1, 1])]),
    (400, INFER, [tensors(data=data) for data in (None, ["x"], [True], [[1.0]], [{}], [], [1.0, 2.0])]),
    (400, INFER, [b'{"inputs":[{"name":"\xff","shape":[1],"datatype":"FP64","data":[1]}]}', {"inputs": []}]),
    (400, INFER, [tensors("size", "size"), *(tensors(datatype=name) for name in ("BF16", "BYTES", "BOOL", "double"))]),
    (400, INFER, [tensors() | {"outputs": [{"name": "gate"}] * 30_000}]),
    (422, INFER, [tensors(data=[1e60]), tensors(*(f"x{i}" for i in range(10_000))), tensors(shape=[0], data=[])]),
    (404, "/v2/models/other/infer", [tensors(), b"x" * 3_000_000]),
]


@pytest.mark.parametrize(("status", "path", "bodies"), REFUSED)
def test_what_cannot_be_answered_is_refused_with_a_reason(status, path, bodies, caplog):
    with answering() as server:
        for body in bodies:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            found, headers, answer = ask(server, path, "POST", data)
            assert (found, headers["Content-Type"]) == (status, "application/json"), (body, answer)
            assert json.loads(answer)["error"]
            assert len(answer) < 100_000
        assert ask(server, "/predict", "POST", GOOD)[0] == 200
    assert caplog.records == []


def test_what_is_odd_but_valid_is_answered():
    with answering() as server:
        number, missing = (ask(server, "/predict", "POST", body)[2] for body in (GOOD, b'{"size":null}'))
        for body in (b'{"size":2,"size":1}', b'\n{ "size" : 1 }\r\n', b'{"size":1,"NaN\\"":NaN,"z":[[]]}'):
            assert ask(server, "/predict", "POST", body)[2] == number, body
        assert ask(server, "/predict", "POST", b'{"size":NaN}')[2] == missing
        assert ask(server, "/predict", "POST", b'[{"size":NaN}]')[2] == b"[" + missing + b"]"
        lines = ask(server, "/predict", "POST", GOOD + b"\n\n" + GOOD, Content_Type="application/jsonl")[2]
        assert lines == (number + b"\n") * 2
        assert ask(server, INFER, "POST", json.dumps(tensors("size", *map(str, range(9_000)))))[0] == 200
        assert ask(server, f"{MODEL}/versions/30", "HEAD")[0] == 200
        form = {"Content_Type": "application/x-www-form-urlencoded"}  # what curl says of any data
        assert ask(server, "/predict", "POST", b'{"size":1,"b":"' + b"&" * 5_000 + b'"}', **form)[2] == number


def test_heads_decide_before_bodies_and_connections_outlive_refusals():
    with answering(username="shop", password="a password") as server:
        good = {"Authorization": basic("shop", "a password")}
        for status, headers in (
            (421, good | {"Host": "evil.example"}),
            (401, {"Authorization": basic("shop", "another")}),
            (415, good | {"Content-Encoding": "gzip"}),
        ):
            found, _, answer = ask(server, "/predict", "POST", gzip.compress(GOOD), **headers)
            assert (found, json.loads(answer).keys()) == (status, {"error"})
        status, headers, _ = ask(server, "/predict", "PUT", GOOD)
        assert (status, headers["Allow"]) == (405, "POST")
        assert ask(server, "/docs")[0] == ask(server, "/openapi.json")[0] == 401
        assert ask(server, f"{MODEL}/ready")[0] == ask(server, "/healthz")[0] == 200
    with answering() as server:
        three = b"POST /predict HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\n\r\n{{{"
        found = raw(server, three * 2 + POST + b"Content-Length: 10\r\n\r\n" + GOOD)
        assert statuses(found) == [422, 422, 200]
        chunked = POST + b"Transfer-Encoding: chunked\r\n\r\n"
        in_chunks = b"4\r\n" + GOOD[:4] + b"\r\n6\r\n" + GOOD[4:] + b"\r\n0\r\n\r\n"
        assert statuses(raw(server, chunked + in_chunks)) == [200]
        for length in (b"-1", b"99999999999999999999", b"3\r\nContent-Length: 4", b"3\r\nTransfer-Encoding: chunked"):
            assert statuses(raw(server, POST + b"Content-Length: " + length + b"\r\n\r\n")) == [400]
        assert statuses(raw(server, chunked + b"zz\r\n")) == [400]
        continued = raw(server, POST + b"Expect: 100-continue\r\nContent-Length: 10\r\n\r\n" + GOOD)
        assert statuses(continued) == [100, 200]


def test_large_bodies_are_not_kept_and_rows_are_rationed():
    with answering(rows_per_second=5) as server:
        ask(server, "/predict", "POST", GOOD)
        used = descriptors()
        chunks = b"10000\r\n" + b"[" * 0x10000 + b"\r\n"
        tracemalloc.start()
        for head in (b"Content-Length: 67108864\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n"):
            body = b"[" * (1 << 26) if b"Length" in head else chunks * 1024 + b"0\r\n\r\n"
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            assert statuses(raw(server, POST + head + body)) == [413]
            assert tracemalloc.get_traced_memory()[1] - before < (1 << 26) + (8 << 20)
        tracemalloc.stop()
        wait_until(lambda: descriptors() <= used, "all are closed")
        rows = b"[" + b",".join([GOOD] * 50) + b"]"
        found = [ask(server, "/predict", "POST", rows)[:2] for _ in range(2)]
        assert [status for status, _ in found] == [200, 429]
        assert found[1][1]["Retry-After"] == "1"


def test_answers_do_not_depend_on_bytes_that_no_header_can_have():
    places = [{"path": "/tmp/\xfc\udcff", "offset": 3}]
    with answering(classifier(), positions=places, problem="the disk is full") as server:
        _, headers, _ = ask(server, "/predict", "POST", GOOD)
        assert json.loads(headers["Streammoe-Positions"]) == places
        assert json.loads(json.loads(ask(server, MODEL)[2])["parameters"]["positions"]) == places
        assert ask(server, "/readyz")[0] == 503
        assert ask(server, INFER, "POST", json.dumps(tensors()))[0] == 200
