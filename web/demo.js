/** Semantic search over the visitor's own text: embed its parts, embed the query, compare. */

import { env, pipeline } from "./inpage.js";
import { HeatMap } from "./heatmap.js";
import { announce, countRequests, element, isAborted, showError, showFact, showLoading, showProgress, startTheme } from "./page.js";

const MODEL = "./models/sentence-transformers/all-MiniLM-L6-v2/";
const OPTIONS = /** @type {const} */ ({ pooling: "mean", normalize: true });
const SHOWN = 8;
const VISITED = "inpage-demo-visited";

const SAMPLE = `The moon pulls the oceans towards it, and twice a day the water climbs the harbour wall. When sun and moon line up, the pull is strongest and spring tides flood the marshes. Fishermen here read the almanac before they read the news.

A sourdough starter is a small zoo of yeast and bacteria that wants to be fed. Flour and water are enough; the microbes come along with the grain. If the dough has doubled overnight, it is ready for the oven.

Patch kits have got better, but finding the hole is still the hard part. Pump up the inner tube, hold it under water and watch for bubbles. Check the rim for a thorn before you put the wheel back on. A drop of oil on the chain keeps the ride quiet.

Screens late in the evening tell the brain that it is still noon. A cool, dark room and a fixed hour of waking help more than counting sheep. Coffee at four in the afternoon is still in your blood at midnight.

A hive in June may hold fifty thousand bees and a single queen. The workers dance to tell their sisters where the lime trees are in bloom. The nectar that they thicken and store for the winter ends up on our toast.

Light from the Andromeda galaxy set out before there were people to see it. With a dark sky and patience you can find that smudge without any telescope. The same stars guided sailors home long before there were charts.`;

/** @typedef {{text: string, start: number, end: number}} Part */

/** @type {HTMLFormElement} */ const source = element("source");
/** @type {HTMLTextAreaElement} */ const textarea = element("text");
/** @type {HTMLInputElement} */ const queryInput = element("query");
/** @type {HTMLButtonElement} */ const indexButton = element("index");
/** @type {HTMLButtonElement} */ const stopButton = element("stop");
/** @type {HTMLOListElement} */ const resultList = element("results");
/** @type {HTMLDetailsElement} */ const matrix = element("matrix");

/** @type {Promise<import("./inpage.js").FeatureExtractionPipeline> | undefined} */
let extractor;
/** @type {Map<string, Float32Array>}  Vectors of all that was embedded, so that an edit costs what it changes. */
const vectors = new Map();
/** @type {Part[]} */
let parts = [];
/** @type {AbortController | undefined} */
let indexing;
/** @type {AbortController | undefined} */
let asking;

const heatMap = new HeatMap(element("heatmap"), element("scale"), showPair);

// Text

/** The parts of the text by the chosen unit, with their places. @returns {Part[]} */
function split() {
  const paragraphs = [...textarea.value.matchAll(/(?:[^\n]|\n(?!\s*\n))+/g)].map(({ 0: segment, index }) => ({
    segment: segment.replaceAll("\n", " "), // a line's end does not end a sentence
    index,
  }));
  const segmenter = new Intl.Segmenter(undefined, { granularity: "sentence" });
  const sentences = (/** @type {{segment: string, index: number}} */ { segment, index }) =>
    [...segmenter.segment(segment)].map((sentence) => ({ segment: sentence.segment, index: index + sentence.index }));
  return (chosenUnit() === "paragraph" ? paragraphs : paragraphs.flatMap(sentences)).flatMap(({ segment, index }) => {
    const text = segment.trim();
    const start = index + segment.indexOf(text);
    return text ? [{ text, start, end: start + text.length }] : [];
  });
}

const chosenUnit = () => new FormData(source).get("unit");

/** Say how many parts the text has and whether they are indexed. */
function showSource() {
  const found = split();
  const indexed = found.length === parts.length && found.every(({ text }, at) => text === parts[at].text);
  element("count").textContent = `${found.length} ${chosenUnit()}${found.length === 1 ? "" : "s"}`;
  stopButton.hidden = !indexing;
  indexButton.hidden = Boolean(indexing);
  indexButton.disabled = !found.length || indexed;
  indexButton.textContent = !parts.length ? "Index this text" : indexed ? "Indexed" : "Update index";
}

// Model

/** The pipeline, loaded once. @param {AbortSignal} signal */
function load(signal) {
  extractor ??= showLoading("91 MB, downloaded once", (progress_callback) =>
    pipeline("feature-extraction", MODEL, { progress_callback, signal }),
  ).then(
    (pipe) => {
      localStorage.setItem(VISITED, "yes");
      return pipe;
    },
    (error) => {
      extractor = undefined;
      throw error;
    },
  );
  return extractor;
}

/**
 * Embed the texts that have no vector yet.
 * @param {string[]} texts
 * @param {AbortSignal} signal
 */
async function embed(texts, signal, report = (/** @type {number} */ _done, /** @type {number} */ _total) => {}) {
  const extract = await load(signal);
  const missing = [...new Set(texts)].filter((text) => !vectors.has(text));
  if (!missing.length) return;
  const started = performance.now();
  const progress_callback = (/** @type {import("./inpage.js").ProgressEvent} */ event) =>
    event.status === "run" && report(event.done, event.total);
  const { data, dims } = await extract(missing, { ...OPTIONS, signal, progress_callback });
  const each = (performance.now() - started) / missing.length;
  showFact("speed", `${each < 10 ? each.toFixed(1) : Math.round(each)} ms`, missing.length > 1 ? `a text, ${missing.length} at once` : "for a query");
  missing.forEach((text, row) => vectors.set(text, data.subarray(row * dims[1], (row + 1) * dims[1])));
}

/** Cosine of the angle of two vectors of length 1. @param {Float32Array} a @param {Float32Array} b */
const similarity = (a, b) => a.reduce((sum, value, axis) => sum + value * b[axis], 0);

/** @param {string} text */
const vector = (text) => /** @type {Float32Array} */ (vectors.get(text));

// Index

async function index() {
  const wanted = split();
  if (!wanted.length || indexing) return;
  indexing = new AbortController();
  showSource();
  showProgress(0, "Preparing …");
  announce("Indexing started.");
  try {
    const texts = wanted.map(({ text }) => text);
    await embed(texts, indexing.signal, (done, total) => showProgress((100 * done) / total, `Reading ${done} of ${total}`));
    parts = wanted;
    element("work").hidden = true;
    announce(`${parts.length} parts of your text are indexed. Ask something.`);
    showMap();
    await ask();
  } catch (error) {
    showError(error);
  } finally {
    indexing = undefined;
    showSource();
    await countRequests();
  }
}

// Search

async function ask() {
  asking?.abort();
  const query = queryInput.value.trim();
  if (!query || !parts.length) return showResults([]);
  asking = new AbortController();
  try {
    const started = performance.now();
    await embed([query], asking.signal);
    const asked = vector(query);
    const ranked = parts
      .map((part) => ({ part, score: similarity(asked, vector(part.text)) }))
      .sort((a, b) => b.score - a.score);
    showResults(ranked.slice(0, SHOWN));
    const took = Math.round(performance.now() - started);
    announce(`${Math.min(SHOWN, ranked.length)} results in ${took} milliseconds. Best: ${ranked[0].part.text}`);
    await countRequests();
  } catch (error) {
    if (!isAborted(error)) showError(error);
  }
}

/** @param {{part: Part, score: number}[]} results */
function showResults(results) {
  element("empty").hidden = results.length > 0;
  resultList.replaceChildren(
    ...results.map(({ part, score }) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(
        span("score", score.toFixed(2)),
        span("passage", part.text),
        bar(score),
      );
      button.addEventListener("click", () => reveal(part));
      const item = document.createElement("li");
      item.append(button);
      return item;
    }),
  );
}

/** @param {string} name @param {string} text */
function span(name, text) {
  const made = document.createElement("span");
  made.className = name;
  made.textContent = text;
  return made;
}

/** @param {number} score */
function bar(score) {
  const made = span("bar", "");
  const fill = document.createElement("i");
  fill.style.width = `${Math.max(0, 100 * score)}%`;
  made.append(fill);
  return made;
}

/** Select a part in the text and bring it into view. @param {Part} part */
function reveal({ start, end }) {
  const text = textarea.value;
  textarea.focus();
  textarea.value = text.slice(0, end);
  textarea.scrollTop = textarea.scrollHeight;
  textarea.value = text;
  textarea.setSelectionRange(start, end);
  textarea.scrollIntoView({ block: "nearest" });
}

// Heat map

function showMap() {
  const count = parts.length;
  const all = parts.map(({ text }) => vector(text));
  const values = new Float32Array(count * count);
  all.forEach((a, row) => all.forEach((b, column) => (values[row * count + column] = similarity(a, b))));
  element("map").hidden = false;
  element("heatmap").ariaLabel = `Heat map of the similarities of ${count} parts of the text`;
  matrix.open = false;
  element("scale-top").textContent = `${heatMap.show(values, count).toFixed(2)}, alike`;
}

/** @param {number} row @param {number} column @param {number} value */
function showPair(row, column, value) {
  const number = document.createElement("b");
  number.textContent = value.toFixed(2);
  const passages = [row, column].map((at) => {
    const passage = document.createElement("p");
    const label = document.createElement("small");
    label.textContent = `Part ${at + 1}`;
    passage.append(label, parts[at].text);
    return passage;
  });
  element("pair").replaceChildren(number, ...passages);
}

/** The numbers of the map as a table, made when it is opened. */
function showMatrix() {
  const table = document.createElement("table");
  const head = table.createTHead().insertRow();
  const cell = (/** @type {HTMLTableRowElement} */ row, /** @type {string} */ text, /** @type {string} */ scope) => {
    const made = row.appendChild(document.createElement(scope ? "th" : "td"));
    made.textContent = text;
    if (scope) made.setAttribute("scope", scope);
  };
  cell(head, "Part", "col");
  parts.forEach((_, column) => cell(head, String(column + 1), "col"));
  const body = table.createTBody();
  parts.forEach((part, at) => {
    const row = body.insertRow();
    cell(row, `${at + 1}. ${part.text}`, "row");
    parts.forEach((other) => cell(row, similarity(vector(part.text), vector(other.text)).toFixed(2), ""));
  });
  matrix.querySelector(".scroll")?.replaceChildren(table);
}

// Start

// With `?threads`, a host that cannot isolate the page by headers has a service worker do it.
if (new URLSearchParams(location.search).has("threads")) await (await import("./isolation.js")).isolated;
env.remoteHost = "./"; // no model is looked for anywhere but beside this page
textarea.value = SAMPLE;
startTheme(() => heatMap.draw());
showSource();
void countRequests();

source.addEventListener("submit", (event) => {
  event.preventDefault();
  void index();
});
source.addEventListener("input", showSource);
stopButton.addEventListener("click", () => indexing?.abort());
matrix.addEventListener("toggle", () => matrix.open && showMatrix());

/** @type {ReturnType<typeof setTimeout> | undefined} */
let pause;
queryInput.addEventListener("input", () => {
  clearTimeout(pause);
  pause = setTimeout(() => (parts.length || indexing ? ask() : index()), 150);
});
document.querySelectorAll(".chips button").forEach((chip) =>
  chip.addEventListener("click", () => {
    queryInput.value = chip.textContent ?? "";
    void (parts.length || indexing ? ask() : index());
  }),
);

if (localStorage.getItem(VISITED)) void index(); // the model is in the cache
