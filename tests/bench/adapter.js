/**
 * inpage as an engine of the peers' harness: texts to mean-pooled, normalised rows, tokenising included.
 * cfg: model (URL of a folder), dtype, threads.
 */
import { env, pipeline } from "/ours/inpage.js";

export async function load(cfg) {
  env.wasm.numThreads = cfg.threads;
  const extract = await pipeline("feature-extraction", new URL(cfg.model, location.href).href, { dtype: cfg.dtype });
  return {
    embed: async (texts) => (await extract(texts, { pooling: "mean", normalize: true, batch_size: 32 })).data,
  };
}
