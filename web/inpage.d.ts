/**
 * Hugging Face transformer models inside the web page.
 *
 *     import { pipeline } from "./inpage.js";
 *     const extract = await pipeline("feature-extraction", "sentence-transformers/all-MiniLM-L6-v2");
 *     const vectors = await extract(["a text", "another"], { pooling: "mean", normalize: true });
 *
 * What runs is the Python package `inpage`, in a Web Worker; this module is its remote control. Names, options and
 * results are Python's, in Python's spelling (`top_k`, `batch_decode`). Arguments go by position; a trailing plain
 * object has the named ones (give `{}` after a last positional argument that is a plain object itself). An option that
 * does not exist raises; none is ignored.
 */

/** Where a call stands. Percentages (`progress`) never fall. Later versions may add fields. */
export type ProgressEvent = BootEvent | FileEvent | FileProgressEvent | TotalProgressEvent | ReadyEvent | RunEvent;

/** The worker starts. Sent to all calls that wait for it. */
export interface BootEvent {
  status: "boot";
  name: "pyodide" | "packages" | "inpage" | "ready";
  progress: number;
}

/** A file of a model, as in transformers.js; `cached`: it comes from this browser's store. */
export interface FileEvent {
  status: "initiate" | "download" | "done";
  name: string;
  file: string;
  cached: boolean;
}

export interface FileProgressEvent {
  status: "progress";
  name: string;
  file: string;
  progress: number;
  loaded: number;
  /** 0 while the host does not state the length. */
  total: number;
  cached: boolean;
}

/** All files of a load together; `cached`: all so far come from this browser's store. */
export interface TotalProgressEvent {
  status: "progress_total";
  name: string;
  progress: number;
  loaded: number;
  total: number;
  files: Record<string, { loaded: number; total: number }>;
  cached: boolean;
}

/** A pipeline can be used. */
export interface ReadyEvent {
  status: "ready";
  task: string;
  model: string;
}

/** A pipeline computes: items done of all; in generation, new tokens of the most that there can be. */
export interface RunEvent {
  status: "run";
  done: number;
  total: number;
  progress: number;
  /** text-generation: the text that has become certain, of input number `index`. */
  text?: string;
  index?: number;
}

/** Options of every call. They stay in the page. */
export interface CallOptions {
  /** Ends the call: while it waits for its turn, loads, or computes (between two batches). It rejects with "aborted". */
  signal?: AbortSignal;
  progress_callback?: (event: ProgressEvent) => void;
}

export interface LoadOptions extends CallOptions {
  /** Branch, tag or commit; "main" by default. */
  revision?: string;
  /** Folder inside the repository. */
  subfolder?: string;
  /** Access token. It is sent to `env.remoteHost` only. */
  token?: string;
  /** Load nothing over the network that the store does not have. */
  local_files_only?: boolean;
  [option: string]: unknown;
}

export type Dtype = "auto" | "fp32" | "fp16" | "q8" | "q8g" | "q4" | "q4z";

export interface ModelOptions extends LoadOptions {
  /** Precision of the weights in memory, or several by patterns of names of modules and parameters, in order. */
  dtype?: Dtype | (string & {}) | Record<string, Dtype>;
  /** What computes: "wasm", or "reference", which needs NumPy in the runtime. */
  device?: "wasm" | "reference" | (string & {});
}

/** An object in the worker. */
export interface RemoteObject {
  /** Frees it. Later calls reject with "disposed". */
  dispose(): Promise<void>;
}

/** An object of which this file knows no more: methods are called, attributes are promises of their values. */
export type AnyRemoteObject = RemoteObject & ((...args: any[]) => Promise<any>) & { readonly [name: string]: any };

// Pipelines

export interface PipelineOptions extends CallOptions {
  /** Sequences computed at once. No result depends on it. */
  batch_size?: number;
  /** Cut texts to what the model takes (true), refuse longer ones (false), or which text of a pair to cut. */
  truncation?: boolean | "longest_first" | "only_first" | "only_second";
  /** Cut to so many tokens instead. */
  max_length?: number;
  add_special_tokens?: boolean;
}

export interface Pipeline extends RemoteObject {
  readonly task: Promise<string>;
  readonly tokenizer: Promise<Tokenizer>;
  readonly model: Promise<Model>;
}

export interface FeatureExtractionPipeline extends Pipeline {
  /** [n, dim] for n texts. */
  (texts: string | string[], options: FeatureExtractionOptions & { pooling: Exclude<Pooling, "none"> }): Promise<Tensor>;
  /** [1, tokens, dim] for a text. */
  (text: string, options?: FeatureExtractionOptions): Promise<Tensor>;
  (texts: string[], options?: FeatureExtractionOptions): Promise<Tensor[]>;
}

export type Pooling = "none" | "mean" | "cls" | "first_token" | "last_token" | "eos";

export interface FeatureExtractionOptions extends PipelineOptions {
  pooling?: Pooling;
  /** Scale each vector to length 1. */
  normalize?: boolean;
}

export interface TextClassificationPipeline extends Pipeline {
  (text: Text, options: TextClassificationOptions & { top_k: number | null }): Promise<Label[]>;
  (texts: Text[], options: TextClassificationOptions & { top_k: number | null }): Promise<Label[][]>;
  (texts: string | Text[], options?: TextClassificationOptions): Promise<Label[]>;
  /** A single pair needs the options after it, `{}` if there are none; it would be taken for them. */
  (pair: Exclude<Text, string>, options: TextClassificationOptions): Promise<Label>;
}

export type Text = string | { text: string; text_pair?: string };

export interface TextClassificationOptions extends PipelineOptions {
  /** Labels wanted of each text, best first; null for all. */
  top_k?: number | null;
  /** What makes scores of logits; by default what the model's kind of problem asks for. */
  function_to_apply?: "default" | "softmax" | "sigmoid" | "none";
}

export interface Label {
  label: string;
  score: number;
}

export interface TokenClassificationPipeline extends Pipeline {
  (text: string, options?: TokenClassificationOptions): Promise<Entity[]>;
  (texts: string[] | string[][], options?: TokenClassificationOptions): Promise<Entity[][]>;
}

export interface TokenClassificationOptions extends PipelineOptions {
  aggregation_strategy?: "none" | "simple" | "first" | "average" | "max";
  /** Labels that are not reported; ["O"] by default. */
  ignore_labels?: string[];
  /** Read long texts in parts with so many tokens in common. */
  stride?: number;
  /** Items are lists of words, joined by `delimiter`. */
  is_split_into_words?: boolean;
  delimiter?: string;
}

export interface Entity {
  score: number;
  start: number | null;
  end: number | null;
  word: string;
  /** With an aggregation strategy. */
  entity_group?: string;
  /** Without one. */
  entity?: string;
  index?: number;
}

export interface FillMaskPipeline extends Pipeline {
  (text: string, options?: FillMaskOptions): Promise<Fill[] | Fill[][]>;
  (texts: string[], options?: FillMaskOptions): Promise<(Fill[] | Fill[][])[]>;
}

export interface FillMaskOptions extends PipelineOptions {
  top_k?: number;
  /** Propose these words alone. */
  targets?: string | string[];
}

export interface Fill {
  score: number;
  token: number;
  token_str: string;
  sequence: string;
}

export interface QuestionAnsweringPipeline extends Pipeline {
  /** An answer, or several if there are more than one and `top_k` asks for them; an array of that for several questions. */
  (input: Question & QuestionAnsweringOptions): Promise<Answer | Answer[]>;
  (inputs: Question[], options?: QuestionAnsweringOptions): Promise<(Answer | Answer[])[]>;
  (question: string, context: string, options?: QuestionAnsweringOptions): Promise<Answer | Answer[]>;
  (questions: string[], context: string | string[], options?: QuestionAnsweringOptions): Promise<(Answer | Answer[])[]>;
}

export interface Question {
  question: string;
  context: string;
}

export interface QuestionAnsweringOptions extends CallOptions {
  batch_size?: number;
  top_k?: number;
  doc_stride?: number;
  max_answer_len?: number;
  max_seq_len?: number;
  max_question_len?: number;
  handle_impossible_answer?: boolean;
  align_to_words?: boolean;
}

export interface Answer {
  score: number;
  start: number;
  end: number;
  answer: string;
}

export interface TextGenerationPipeline extends Pipeline {
  (text: string, options?: TextGenerationOptions): Promise<{ generated_text: string }[]>;
  (texts: string[], options?: TextGenerationOptions): Promise<{ generated_text: string }[][]>;
  /** The conversation with the assistant's message; that message's text with `return_full_text: false`. */
  (messages: ChatMessage[], options?: TextGenerationOptions): Promise<{ generated_text: any }[]>;
  (conversations: ChatMessage[][], options?: TextGenerationOptions): Promise<{ generated_text: any }[][]>;
  /** Frees the keys and values that are kept for the next turn of a conversation. */
  clear_cache(): Promise<void>;
}

export interface ChatMessage {
  role: "system" | "user" | "assistant" | (string & {});
  content: any;
  [field: string]: any;
}

/** Every option of generation in transformers' spelling; these are the common ones. */
export interface GenerationOptions extends CallOptions {
  max_new_tokens?: number;
  do_sample?: boolean;
  temperature?: number;
  top_k?: number;
  top_p?: number;
  min_p?: number;
  repetition_penalty?: number;
  num_beams?: number;
  num_return_sequences?: number;
  stop_strings?: string | string[];
  /** Makes samples repeatable. */
  seed?: number;
  /** A smaller model with the same vocabulary, whose guesses save steps; the text stays the same. */
  assistant_model?: Model;
  num_assistant_tokens?: number;
  /** Guess so many tokens by what followed the same words before. */
  prompt_lookup_num_tokens?: number;
  [option: string]: unknown;
}

export interface TextGenerationOptions extends GenerationOptions {
  return_full_text?: boolean;
  tools?: Record<string, any>[];
  /** The form of what is written: a JSON schema, a regular expression, or one of some texts. */
  json_schema?: Record<string, any>;
  regex?: string;
  choices?: string[];
}

/** Texts as they are written, each piece once, and in the end the result of the call. */
export interface TextStream<Result> extends AsyncIterable<string> {
  readonly result: Promise<Result>;
}

/**
 * Calls a text-generation pipeline with one input and gives its text while it is written:
 *
 *     for await (const text of stream(generate, messages, { max_new_tokens: 100 })) output.append(text);
 *
 * Leaving the loop aborts the call.
 */
export function stream(
  generate: TextGenerationPipeline,
  input: string | ChatMessage[],
  options?: TextGenerationOptions,
): TextStream<{ generated_text: any }[]>;

export interface ZeroShotClassificationPipeline extends Pipeline {
  (text: string, labels: string | string[], options?: ZeroShotClassificationOptions): Promise<Ranking>;
  (texts: string[], labels: string | string[], options?: ZeroShotClassificationOptions): Promise<Ranking[]>;
}

export interface ZeroShotClassificationOptions extends PipelineOptions {
  /** A sentence with {} for the label. */
  hypothesis_template?: string;
  /** Score labels independently; otherwise the scores of all labels add up to 1. */
  multi_label?: boolean;
}

export interface Ranking {
  sequence: string;
  labels: string[];
  scores: number[];
}

export interface Tasks {
  "feature-extraction": FeatureExtractionPipeline;
  embeddings: FeatureExtractionPipeline;
  "text-classification": TextClassificationPipeline;
  "sentiment-analysis": TextClassificationPipeline;
  "token-classification": TokenClassificationPipeline;
  ner: TokenClassificationPipeline;
  "fill-mask": FillMaskPipeline;
  "question-answering": QuestionAnsweringPipeline;
  "text-generation": TextGenerationPipeline;
  "zero-shot-classification": ZeroShotClassificationPipeline;
}

/**
 * Load a model for a task.
 * @param model Hub id ("org/name"), a folder's URL or path ("./models/name/", relative to the page), or a model from
 *   `AutoModel*.from_pretrained` (then `tokenizer` is needed, too).
 */
export function pipeline<T extends keyof Tasks>(
  task: T,
  model: string | Model,
  options?: ModelOptions & { tokenizer?: string | Tokenizer },
): Promise<Tasks[T]>;

// Models and tokenizers

export interface Model extends RemoteObject {
  /** The outputs that there are, by name. Takes what a tokenizer gives. */
  (inputs: Record<string, unknown> & CallOptions): Promise<Record<string, Tensor | Tensor[]>>;
  readonly config: Promise<AnyRemoteObject>;
  /** Causal language models: tokens [n, length], prompts included. Takes every option of generation. */
  generate(inputs: number[][] | Tensor | Record<string, unknown>, options?: GenerationOptions): Promise<any>;

  /**
   * Adds a LoRA adapter of PEFT, from a hub id, a folder's URL or path, and makes it the active one.
   * @param adapter_name "default" if it is left out.
   */
  load_adapter(name: string, adapter_name: string, options?: LoadOptions): Promise<void>;
  load_adapter(name: string, options?: LoadOptions & { adapter_name?: string }): Promise<void>;
  /** Makes an adapter the active one, or several, whose effects add up. */
  set_adapter(adapter_name: string | string[]): Promise<void>;
  active_adapters(): Promise<string[]>;
  /** Computes as without adapters, until `enable_adapters`. */
  disable_adapters(): Promise<void>;
  enable_adapters(): Promise<void>;
  /** Frees adapters. */
  delete_adapter(adapter_names: string | string[]): Promise<void>;
  /** Adds the active adapters, or those named, to weights in float32, until `unmerge_adapter`. */
  merge_adapter(adapter_names?: string | string[]): Promise<void>;
  unmerge_adapter(): Promise<void>;
  readonly [name: string]: any;
}

export interface Tokenizer extends RemoteObject {
  /** Token ids and masks by name, as lists; as tensors with `return_tensors: "ip"`. */
  (text: string | string[], options?: TokenizerOptions): Promise<Record<string, any>>;
  (text: string | string[], pair: string | string[], options?: TokenizerOptions): Promise<Record<string, any>>;
  encode(text: string, options?: TokenizerOptions): Promise<number[]>;
  tokenize(text: string, options?: TokenizerOptions): Promise<string[]>;
  decode(ids: number[] | Tensor, options?: DecodeOptions): Promise<string>;
  batch_decode(ids: number[][] | Tensor, options?: DecodeOptions): Promise<string[]>;
  readonly [name: string]: any;
}

export interface TokenizerOptions extends CallOptions {
  padding?: boolean | "longest" | "max_length" | "do_not_pad";
  truncation?: boolean | "longest_first" | "only_first" | "only_second" | "do_not_truncate";
  max_length?: number;
  add_special_tokens?: boolean;
  return_tensors?: "ip";
  return_offsets_mapping?: boolean;
  [option: string]: unknown;
}

export interface DecodeOptions extends CallOptions {
  skip_special_tokens?: boolean;
  clean_up_tokenization_spaces?: boolean;
}

export interface Loader<T> {
  from_pretrained(name: string, options?: T extends Model ? ModelOptions : LoadOptions): Promise<T>;
}

export const AutoConfig: Loader<AnyRemoteObject>;
export const AutoModel: Loader<Model>;
export const AutoModelForCausalLM: Loader<Model>;
export const AutoModelForMaskedLM: Loader<Model>;
export const AutoModelForQuestionAnswering: Loader<Model>;
export const AutoModelForSequenceClassification: Loader<Model>;
export const AutoModelForTokenClassification: Loader<Model>;
export const AutoTokenizer: Loader<Tokenizer>;

/** Call any public name of the Python package: `create("AutoConfig.from_pretrained", "org/name")`. */
export function create(name: string, ...args: any[]): Promise<any>;

// Values

export type TypedArray =
  Float32Array | Float64Array | Int32Array | BigInt64Array | Int16Array | Int8Array | Uint8Array;

/** A dense array in row-major order. Results are "float32" or "int32"; others become these on their way to a model. */
export class Tensor {
  constructor(type: string, data: TypedArray | ArrayLike<number>, dims: readonly number[]);
  readonly type: string;
  readonly dims: number[];
  /** The elements, flat. */
  readonly data: any;
  readonly size: number;
  /** Nested arrays of the elements; a number if there are no dims. */
  tolist(): any;
  /** The value of a tensor with one element. */
  item(): number;
}

// Errors

/**
 * What failed, what was expected and found (`message`), and what to try (`hint`).
 *
 * `code` is stable: "input", "config", "unsupported", "not_found", "access_denied", "network", "corrupt_file", "store",
 * "checkpoint", "mismatched_shapes", "out_of_memory", "kernel", "remote_code", "aborted", "disposed", "worker" (it could
 * not start, or stopped) or "internal" (a bug; `details.traceback` says where). An aborted call's error has the name
 * "AbortError", as DOMException has it.
 */
export class InpageError extends Error {
  constructor(fields: { code: string; message: string; hint?: string; details?: Record<string, unknown> });
  readonly code: string;
  readonly hint: string;
  readonly details: Record<string, any>;
}

// Settings and the worker

/** Settings. Python's have effect on what is loaded after; an unknown name, or a value of another type, raises at once. */
export const env: {
  /** URL of inpage-worker.js; beside this file by default. */
  workerURL: string;
  /** URL of the folder with Pyodide and the wheels; `runtime/` beside this file by default. */
  runtimeURL: string;
  /** Whether models are looked for under `localModelPath` (first) and on `remoteHost`. */
  allowLocalModels: boolean;
  allowRemoteModels: boolean;
  /** URL under which models lie as `org/name/` folders. */
  localModelPath: string;
  remoteHost: string;
  /** Path on `remoteHost`, with {model} and {revision}. */
  remotePathTemplate: string;
  /** Whether files are kept in Cache Storage: those of models in the cache `cacheName`, Python's in `inpage-runtime`. */
  useBrowserCache: boolean;
  cacheName: string;
  /**
   * Of the WebAssembly kernels, for models loaded from then on; null lets them choose: threads are half the logical cores,
   * at most 4. More than one needs a cross-origin isolated page: the headers Cross-Origin-Opener-Policy and
   * -Embedder-Policy, or `isolation.js`.
   */
  wasm: { numThreads: number | null; variant: string | null; maxMemory: number | null };
};

/** URLs of all that the worker has fetched, and the page for it: what stays in the page can be shown, not only promised. */
export function requests(): Promise<string[]>;

/** End the worker and free everything. Objects are gone; the next call starts a new one. */
export function terminate(): void;
