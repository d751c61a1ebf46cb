"""The client of the Triton Inference Server, unchanged: it speaks the Open Inference Protocol as KServe's do."""

import numpy as np
import pytest
from tritonclient.http import InferenceServerClient, InferenceServerException, InferInput, InferRequestedOutput

from tests.unit.serving.served import MODEL, answering, classifier, regressor

NAME = MODEL.rpartition("/")[2]


def tensor(name, datatype, values, *, binary_data=False):
    found = InferInput(name, [len(values)], datatype)
    found.set_data_from_numpy(np.array(values, object if datatype == "BYTES" else None), binary_data=binary_data)
    return found


@pytest.fixture
def client():
    """Connects a client to a server of a model, and closes it."""
    clients = []

    def client(server):
        clients.append(InferenceServerClient(server.url.removeprefix("http://")))
        return clients[-1]

    yield client
    for each in clients:
        each.close()


def test_it_finds_the_model_and_predicts_numbers_texts_and_missing_values(client):
    twin, inputs = regressor(), [tensor("size", "FP64", [0.5, float("nan")]), tensor("colour", "BYTES", ["red", None])]
    with answering(regressor()) as server:
        triton = client(server)
        assert triton.is_server_live()
        assert triton.is_server_ready()
        assert triton.is_model_ready(NAME)
        assert triton.is_model_ready(NAME, "120")
        assert not triton.is_model_ready("other")
        assert triton.get_server_metadata()["name"] == "streammoe"
        metadata = triton.get_model_metadata(NAME)
        assert {each["name"]: each["datatype"] for each in metadata["inputs"]} == {
            "size": "FP64",
            "it's <new>": "FP64",
            "colour": "BYTES",
            "when": "BYTES",
        }
        found = triton.infer(NAME, inputs, request_id="7")
        assert (found.get_response()["id"], found.get_response()["model_version"]) == ("7", "120")
        wanted = [twin.predict_one({"size": 0.5, "colour": "red"}), twin.predict_one({})]
        np.testing.assert_allclose(found.as_numpy("prediction"), wanted, rtol=1e-9)
        assert found.as_numpy("interval").shape == (2, 2)
        one = triton.infer(NAME, inputs, model_version="120", outputs=[InferRequestedOutput("gate")])
        assert [each["name"] for each in one.get_response()["outputs"]] == ["gate"]


def test_it_shows_labels_and_says_why_a_request_is_refused(client):
    with answering(classifier()) as server:
        triton = client(server)
        found = triton.infer(
            NAME, [tensor("size", "FP32", np.float32([3.0, -3.0])), tensor("colour", "BYTES", ["red"] * 2)]
        )
        assert found.as_numpy("prediction").tolist() == ["high", "low"]
        np.testing.assert_allclose(found.as_numpy("probabilities").sum(axis=1), 1.0)
        for inputs, options, wanted in (
            ([tensor("size", "FP64", [1.0], binary_data=True)], {}, "binary_data=False"),
            ([tensor("size", "FP64", [1.0])], {"request_compression_algorithm": "gzip"}, "compressed"),
            ([tensor("other", "FP64", [1.0])], {}, "none of the model's columns"),
        ):
            with pytest.raises(InferenceServerException, match=wanted):
                triton.infer(NAME, inputs, **options)
