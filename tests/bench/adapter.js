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
      const at = [];
      const started = performance.now();
      const options = { max_new_tokens: newTokens, do_sample: false, eos_token_id: [], return_full_text: false };
      const progress_callback = (event) => {
        if (event.status === "run" && event.done > at.length) at.push(performance.now());
      };
      const [{ generated_text: text }] = await generate(prompt, { ...options, progress_callback });
      const { input_ids } = await tokenizer(prompt);
      return {
        promptTokens: input_ids.length, newTokens: at.length, prefillMs: at[0] - started, decodeMs: at.at(-1) - at[0], text,
      };
    },
  };
}
