/**
 * inpage as an engine of the peers' harness: texts to mean-pooled, normalised rows, or text from a prompt, tokenising
 * included. cfg: task, model (URL of a folder), dtype, threads.
 */
import { AutoTokenizer, env, pipeline } from "/ours/inpage.js";

export async function load(cfg) {
  env.wasm.numThreads = cfg.threads;
  const model = new URL(cfg.model, location.href).href;
  return cfg.task === "embed" ? embedder(model, cfg.dtype) : generator(model, cfg.dtype);
}

async function embedder(model, dtype) {
  const extract = await pipeline("feature-extraction", model, { dtype });
  return {
    embed: async (texts) => (await extract(texts, { pooling: "mean", normalize: true, batch_size: 32 })).data,
  };
}

async function generator(model, dtype) {
  const generate = await pipeline("text-generation", model, { dtype });
  const tokenizer = await AutoTokenizer.from_pretrained(model);
  return {
    async generate(prompt, newTokens) {
      /** When there were how many tokens; events may bring several. @type {{time: number, done: number}[]} */
      const seen = [];
      const started = performance.now();
      const options = { max_new_tokens: newTokens, do_sample: false, eos_token_id: [], return_full_text: false };
      const progress_callback = ({ status, done }) => {
        if (status === "run" && done > (seen.at(-1)?.done ?? 0)) seen.push({ time: performance.now(), done });
      };
      const [{ generated_text: text }] = await generate(prompt, { ...options, progress_callback });
      const { input_ids } = await tokenizer(prompt);
      const [first, last] = [seen[0], seen.at(-1)];
      return {
        promptTokens: input_ids.length, newTokens: last.done - first.done + 1,
        prefillMs: first.time - started, decodeMs: last.time - first.time, text,
      };
    },
  };
}
