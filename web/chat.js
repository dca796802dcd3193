/** A conversation with a language model, written token by token, that can be stopped, saved and cleared. */

import { env, pipeline, stream } from "./inpage.js";
import { announce, countRequests, element, isAborted, seconds, showError, showFact, showLoading, startTheme } from "./page.js";

const MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct";
const DTYPE = "q8g"; // nearest to float32 of those that are quick
/** Temperature and top_p as the model's authors advise; the penalty, as a model so small is soon caught in a loop. */
const SAMPLING = { do_sample: true, temperature: 0.2, top_p: 0.9, repetition_penalty: 1.1 };
const LONGEST = 512;
const VISITED = "inpage-chat-visited";

/** @typedef {{role: "user" | "assistant", content: string, tokens?: number, tokens_per_second?: number, end?: "stopped" | "cut" | "full" | "failed"}} Message */
/** @typedef {{generate: import("./inpage.js").TextGenerationPipeline, tokenizer: import("./inpage.js").Tokenizer, size: number}} Chat */

/** @type {HTMLTextAreaElement} */ const question = element("question");
/** @type {HTMLFormElement} */ const form = element("ask");
const panel = /** @type {HTMLElement} */ (document.querySelector(".chat"));
const scroller = element("scroller");
const list = element("messages");

/** @type {Promise<Chat> | undefined} */
let chat;
/** @type {Message[]} */
let messages = [];
let answering = false;
/** Ends what goes on: the loading of the model or an answer. */
let stopping = new AbortController();

// Model

/** The pipeline with its tokenizer and the size of its context, loaded once. */
function load() {
  const { signal } = stopping;
  chat ??= showLoading("273 MB, downloaded once", async (progress_callback) => {
    const options = { dtype: DTYPE, progress_callback, signal };
    const generate = await pipeline("text-generation", `./models/${MODEL}/`, options);
    const config = await (await generate.model).config;
    return { generate, tokenizer: await generate.tokenizer, size: await config.max_position_embeddings };
  }).then(
    (loaded) => {
      localStorage.setItem(VISITED, "yes");
      element("work").hidden = true;
      void countRequests();
      return loaded;
    },
    (error) => {
      chat = undefined;
      throw error;
    },
  );
  return chat;
}

// Answers

/** Put a question, and write the answer while it comes. @param {string} text */
async function ask(text) {
  if (answering || !text.trim()) return;
  const { signal } = stopping;
  messages.push({ role: "user", content: text.trim() });
  /** @type {Message} */
  const answer = { role: "assistant", content: "" };
  const shown = [showMessage(messages[messages.length - 1]), showMessage(answer)];
  setAnswering(true);
  announce("Answering.");
  element("spoken").replaceChildren();
  const speak = speaker();
  try {
    const loaded = await load();
    element("work").hidden = true;
    for await (const piece of write(loaded, answer, signal)) {
      answer.content += piece;
      showPiece(shown[1], piece);
      speak(piece);
    }
    speak("", true);
    announce("");
  } catch (error) {
    answer.end = isAborted(error) ? "stopped" : "failed";
    showError(error);
    if (answer.content && isAborted(error)) element("work").hidden = true; // the answer says so itself
  }
  if (answer.content) {
    messages.push(answer);
    showEnd(shown[1], answer);
  } else {
    // A question without an answer is not part of the conversation: it can be put again.
    messages.pop();
    shown.forEach((item) => item.remove());
    question.value ||= text;
    if (!answer.end) showError(new Error("The model had nothing to say. Ask in other words."));
  }
  setAnswering(false);
  await countRequests();
}

/**
 * The pieces of the answer to the messages. The pipeline keeps what it has read, as long as the conversation goes on.
 * @param {Chat} chat
 * @param {Message} answer  Takes the numbers of tokens.
 * @param {AbortSignal} signal
 */
async function* write({ generate, tokenizer, size }, answer, signal) {
  const conversation = messages.map(({ role, content }) => ({ role, content }));
  const options = { add_generation_prompt: true, return_dict: false, signal };
  const { length: read } = await tokenizer.apply_chat_template(conversation, options);
  if (read >= size) throw new Error("The context is full. Save the conversation and clear it to go on.");
  showContext(read, size);
  const max_new_tokens = Math.min(LONGEST, size - read);
  const started = performance.now();
  let first = 0;
  const progress_callback = (/** @type {import("./inpage.js").ProgressEvent} */ event) => {
    if (event.status !== "run" || !event.done) return;
    answer.tokens = event.done;
    showContext(read + event.done, size);
    const now = performance.now();
    first ||= now;
    if (event.done < 2) return;
    answer.tokens_per_second = Number(((1000 * (event.done - 1)) / (now - first)).toFixed(1));
    showFact("speed", `${answer.tokens_per_second} tokens/s`, `first word after ${seconds(first - started)}`);
  };
  yield* stream(generate, conversation, { ...SAMPLING, max_new_tokens, return_full_text: false, signal, progress_callback });
  if (answer.tokens === max_new_tokens) answer.end = max_new_tokens < LONGEST ? "full" : "cut";
}

function stop() {
  stopping.abort();
  stopping = new AbortController();
  question.focus();
}

async function clear() {
  messages = [];
  list.replaceChildren();
  element("spoken").replaceChildren();
  element("work").hidden = true;
  setAnswering(false);
  question.focus();
  if (!chat) return;
  const { generate, size } = await chat;
  showContext(0, size);
  await generate.clear_cache();
  announce("The conversation is cleared.");
}

// What the page shows

/** @param {boolean} now */
function setAnswering(now) {
  answering = now;
  element("stop").hidden = !now;
  element("send").hidden = now;
  element("empty").hidden = now || messages.length > 0;
  scroller.hidden = !now && !messages.length;
  scroller.ariaBusy = String(now);
  for (const id of ["json", "markdown", "clear"]) {
    /** @type {HTMLButtonElement} */ (element(id)).disabled = now || !messages.length;
  }
  scroller.scrollTop = scroller.scrollHeight;
  if (messages.length) panel.scrollIntoView({ block: "nearest" });
}

/** @param {Message} message */
function showMessage({ role, content }) {
  const item = document.createElement("li");
  item.className = role;
  const who = document.createElement("b");
  who.textContent = role === "user" ? "You" : "SmolLM2";
  const text = document.createElement("p");
  text.append(content);
  item.append(who, text);
  list.append(item);
  return item;
}

/** @param {HTMLElement} item @param {string} piece */
function showPiece(item, piece) {
  const atEnd = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 40; // else the visitor reads above
  const inView = panel.getBoundingClientRect().bottom < innerHeight + 40;
  item.querySelector("p")?.append(piece);
  if (atEnd) scroller.scrollTop = scroller.scrollHeight;
  if (inView) panel.scrollIntoView({ block: "nearest" }); // with the button that stops
}

/** @param {HTMLElement} item @param {Message} answer */
function showEnd(item, { tokens, tokens_per_second, end }) {
  const note = document.createElement("small");
  const speed = tokens_per_second ? `${tokens_per_second} a second` : "";
  const ends = { stopped: "stopped", cut: "cut at the longest answer", full: "cut, the context is full", failed: "failed" };
  note.textContent = [`${tokens} tokens`, speed, end ? ends[end] : ""].filter(Boolean).join(" · ");
  item.append(note);
}

/** @param {number} used @param {number} size */
function showContext(used, size) {
  const meter = element("context");
  meter.ariaValueMax = String(size);
  meter.ariaValueNow = String(used);
  meter.querySelector("i")?.style.setProperty("width", `${(100 * used) / size}%`);
  const numbers = [used, size].map((count) => count.toLocaleString("en"));
  element("context-label").textContent = `Context: ${numbers[0]} of ${numbers[1]} tokens`;
}

/** Gives an answer to screen readers by sentences; token by token nobody could follow. */
function speaker() {
  const segmenter = new Intl.Segmenter(undefined, { granularity: "sentence" });
  let rest = "";
  return (/** @type {string} */ piece, last = false) => {
    rest += piece;
    const sentences = [...segmenter.segment(rest)].map(({ segment }) => segment);
    rest = (last ? "" : sentences.pop()) ?? "";
    for (const sentence of sentences.filter((sentence) => sentence.trim())) {
      const spoken = document.createElement("p");
      spoken.textContent = sentence;
      element("spoken").append(spoken);
    }
  };
}

// Export

/** @param {string} name @param {string} type @param {string} text */
function download(name, type, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

function saveJSON() {
  const saved = { model: MODEL, dtype: DTYPE, ...SAMPLING, saved: new Date().toISOString(), messages };
  download("chat.json", "application/json", `${JSON.stringify(saved, null, 2)}\n`);
}

function saveMarkdown() {
  const turns = messages.map(({ role, content }) => `## ${role === "user" ? "You" : "SmolLM2"}\n\n${content.trim()}\n`);
  download("chat.md", "text/markdown", [`# Chat with ${MODEL}\n`, ...turns].join("\n"));
}

// Start

env.remoteHost = "./"; // no model is looked for anywhere but beside this page
startTheme();
void countRequests();

form.addEventListener("submit", (event) => {
  event.preventDefault();
  if (answering) return;
  const text = question.value;
  question.value = "";
  question.focus();
  void ask(text);
});
question.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  form.requestSubmit();
});
document.addEventListener("keydown", (event) => event.key === "Escape" && answering && stop());
document.querySelectorAll("#empty button").forEach((chip) =>
  chip.addEventListener("click", () => {
    question.focus();
    void ask(chip.textContent ?? "");
  }),
);
element("stop").addEventListener("click", stop);
element("clear").addEventListener("click", clear);
element("json").addEventListener("click", saveJSON);
element("markdown").addEventListener("click", saveMarkdown);

if (localStorage.getItem(VISITED)) load().catch(showError); // the model is in the cache
