"use strict";
// Shows status.json, once a second. What the server says becomes text, never markup.

const SVG = "http://www.w3.org/2000/svg";
const [LEFT, BELOW] = [48, 18]; // room for the numbers of a chart
const byId = (id) => document.getElementById(id);
const known = (value) => value !== null && value !== undefined;
const formatted = (options) => (value) => (known(value) ? new Intl.NumberFormat("en", options).format(value) : "–");
const [usual, extreme] = [{ maximumSignificantDigits: 4 }, { maximumSignificantDigits: 3, notation: "scientific" }].map(formatted);
const isExtreme = (value) => value !== 0 && (Math.abs(value) >= 1e7 || Math.abs(value) < 1e-4);
const number = (value) => (known(value) && isExtreme(value) ? extreme : usual)(value);
const count = formatted({});
const percent = formatted({ style: "percent", minimumFractionDigits: 1 });

function duration(seconds) {
  if (!known(seconds)) return "–";
  const [unit, size] = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]].find(([, size]) => seconds >= 2 * size) ?? ["s", 1];
  return `${Math.floor(seconds / size)} ${unit}`;
}

function element(name, attributes, ...content) {
  const made = document.createElement(name);
  Object.assign(made, attributes).append(...content);
  return made;
}

function shape(name, attributes, ...content) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...content);
  return made;
}

function put(id, ...content) {
  const fresh = byId(id).cloneNode(false);
  fresh.append(...content);
  // What has not changed stays, and with it what a reader has selected.
  if (!fresh.isEqualNode(byId(id))) byId(id).replaceChildren(...fresh.childNodes);
}

function share(value) {
  const bar = element("span", { className: "bar" });
  bar.style.width = `${100 * Math.min(value, 1)}%`;
  return [percent(value), bar];
}

function figure(name, value, note = "") {
  return element("div", {}, element("dt", {}, name), element("dd", {}, value, element("small", {}, note)));
}

function row(head, ...cells) {
  const content = cells.map((cell) => element("td", {}, ...[cell].flat()));
  return element("tr", {}, element("th", { scope: "row" }, head), ...content);
}

function scoreOf(recent) {
  if (known(recent?.accuracy)) return ["Share of errors", 1 - recent.accuracy, 1 - recent.baseline_accuracy];
  return ["Error (RMSE)", recent?.rmse, recent?.baseline_rmse];
}

function concernsOf(status) {
  const [, error, baseline] = scoreOf(status.recent);
  const found = Object.entries(status.stalled ?? {}).map(([where, why]) => `${where} is held up: ${why}`);
  if (status.columns_missing?.length) found.push(`Columns that come no more: ${status.columns_missing.join(", ")}`);
  if (error > baseline) found.push("Lately the baseline predicts better than the model.");
  return found;
}

function showState(level, word, why, concerns) {
  byId("state").className = level;
  document.title = `${word} – streammoe`;
  put("word", word);
  put("why", why);
  put("concerns", ...concerns.map((text) => element("li", {}, text)));
}

function show(status) {
  const concerns = concernsOf(status);
  if (!status.alive) showState("bad", "Hanging", `Nothing has happened for ${duration(status.silent_seconds)}.`, concerns);
  else if (status.problem) showState("bad", "Not ready", status.problem, concerns);
  else showState("good", status.place ? "Answering" : "Learning", concerns.length ? "It runs, but:" : "All is well.", concerns);
  const [name, error, baseline] = scoreOf(status.recent);
  const rejected = Object.entries(status.rejected ?? {});
  put("figures",
    figure("Events learned", count(status.model_events)),
    figure("Events a second", number(status.events_per_second)),
    figure("Behind", duration(status.behind_seconds), status.lag ? `${count(status.lag)} records` : ""),
    figure("Since checkpoint", duration(status.checkpoint_age_seconds), known(status.unsaved_events) ? `${count(status.unsaved_events)} events` : ""),
    figure("Drifts", count(status.drifts), status.last_drift ? `at event ${count(status.last_drift.n)}` : ""),
    figure(`${name}, lately`, number(error), `baseline ${number(baseline)}`),
    figure("Rejected", count(rejected.reduce((sum, [, n]) => sum + n, 0))));
  put("members", ...Object.entries(status.member_weights ?? {}).map(([member, weight]) => row(member, share(weight))));
  put("experts", ...(status.experts ?? []).flatMap(expertRows));
  put("reasons", rejected.map(([reason, n]) => `${count(n)} ${reason}`).join(", ") || "None so far.");
  put("letters", ...(status.latest_rejected ?? []).toReversed().map(letterItem));
  const where = status.place ? `follows ${status.place}` : `process ${status.pid}`;
  put("process", `Version ${status.version}, ${where}, started ${status.started}`);
  if (status.history) history = status.history;
  showCharts();
}

function expertRows(expert, k) {
  const terms = (expert.coefficients ?? []).map((term) => `${number(term.value)} ${term.feature}`).join(", ");
  const details = [expert.region, terms].filter(Boolean).map((text) => element("td", { colSpan: 4 }, text));
  const first = row(String(k), share(expert.share), expert.condition, number(expert.loss));
  return [first, ...details.map((cell) => element("tr", { className: "detail" }, cell))];
}

function letterItem(letter) {
  const place = Object.entries(letter.place).map(([name, value]) => `${name} ${value}`);
  const about = element("small", {}, [letter.time, ...place].join(", "));
  return element("li", {}, element("strong", {}, letter.reason), `: ${letter.detail}`, about);
}

let [history, span] = [{ hour: [], day: [] }, "hour"];

function showCharts() {
  chart("error", "Error", number, { model: ({ recent }) => scoreOf(recent)[1], baseline: ({ recent }) => scoreOf(recent)[2] });
  chart("speed", "Events a second", number, { "": (point) => point.events_per_second });
  chart("delay", "Behind", duration, { "": (point) => point.behind_seconds });
  const covered = ({ recent }) => recent[Object.keys(recent).find((name) => name.startsWith("coverage"))];
  chart("coverage", "Targets in intervals", percent, { "": covered });
}

function chart(id, title, format, of) {
  const lines = Object.values(of).map((value) => history[span].map((point) => [point.at, value(point)]).filter(([, each]) => known(each)));
  const points = lines.flat();
  byId(id).hidden &&= !points.length; // what may stay unknown appears when it is known
  const svg = byId(id).querySelector("svg");
  const [width, height] = [svg.clientWidth, svg.clientHeight];
  const now = Object.keys(of).map((name, i) => `${name} ${format(lines[i].at(-1)?.[1])}`);
  put(`${id}-words`, title, ...now.map((words, i) => element("span", { className: `line${i}` }, `${i ? " – – " : " — "}${words}`)));
  const [times, values] = [0, 1].map((i) => points.map((point) => point[i]));
  const [from, top] = [Math.min(...times), Math.max(...values, 0) || 1];
  const until = Math.max(...times, from + 1);
  const ago = points.length ? `${duration(until - from)} ago` : "no points yet";
  const x = (at) => LEFT + ((at - from) / (until - from)) * (width - LEFT - 2);
  const y = (value) => 8 + (1 - value / top) * (height - BELOW - 12);
  const range = points.length ? `from ${ago} until now between ${format(Math.min(...values))} and ${format(Math.max(...values))}` : ago;
  const made = [shape("title", { id: `${id}-title` }, title), shape("desc", { id: `${id}-desc` }, `${now.join(", ")}; ${range}`)];
  for (const value of [0, top]) {
    made.push(shape("line", { x1: LEFT, x2: width, y1: y(value), y2: y(value) }));
    made.push(shape("text", { x: LEFT - 4, y: y(value) + 4, "text-anchor": "end" }, points.length ? format(value) : ""));
  }
  made.push(shape("text", { x: LEFT, y: height - 5 }, ago), shape("text", { x: width, y: height - 5, "text-anchor": "end" }, "now"));
  const drawn = lines.map((line) => line.map(([at, value]) => `${x(at).toFixed(1)},${y(value).toFixed(1)}`).join(" "));
  made.push(...drawn.map((places, i) => shape("polyline", { class: `line${i}`, points: places })));
  svg.setAttribute("viewBox", `0 0 ${Math.max(width, 1)} ${Math.max(height, 1)}`);
  svg.replaceChildren(...made);
}

let [timer, turn, asking, answered] = [0, 0, false, "never since this page was opened"];

async function poll() {
  clearTimeout(timer);
  if (asking || document.hidden) return;
  asking = true;
  let status;
  try {
    const what = turn % 5 ? "status.json?history=false" : "status.json";
    // An address may name user and password, which browsers send but do not accept here.
    const answer = await fetch(new URL(what, location.origin + location.pathname), { signal: AbortSignal.timeout(5000) });
    if (!answer.ok) throw new Error(`the server says ${answer.status} ${answer.statusText}`);
    [status, turn, answered] = [await answer.json(), turn + 1, `at ${new Date().toLocaleTimeString()}`];
  } catch (error) {
    turn = 0;
    showState("bad", "Gone", `There is no answer (${error.message}). The last one came ${answered}; what is below is old.`, []);
  }
  asking = false;
  timer = setTimeout(poll, 1000);
  if (status) show(status);
}

byId("spans").addEventListener("click", ({ target }) => {
  span = target.value || span;
  for (const button of byId("spans").children) button.ariaPressed = String(button.value === span);
  showCharts();
});
document.addEventListener("visibilitychange", poll);
addEventListener("resize", showCharts);
poll();
