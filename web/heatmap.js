/** A matrix of similarities drawn on a canvas, to be read by pointer or by arrow keys. */

const RAMPS = {
  light: ["#f3ede1", "#f3cf9a", "#e0804f", "#9c3049", "#3d1535"],
  dark: ["#1e1c26", "#3f2350", "#96355a", "#ee7f58", "#ffe2a4"],
};
const DIRECTIONS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

export class HeatMap {
  /** @type {Float32Array} */
  #values = new Float32Array();
  #count = 0;
  #cell = [0, 0];
  #top = 1;
  #canvas;
  #scale;
  #onread;

  /**
   * @param {HTMLCanvasElement} canvas
   * @param {HTMLCanvasElement} scale  The legend.
   * @param {(row: number, column: number, value: number) => void} onread  Called with the cell that is being read.
   */
  constructor(canvas, scale, onread) {
    this.#canvas = canvas;
    this.#scale = scale;
    this.#onread = onread;
    canvas.addEventListener("pointermove", (event) => this.#point(event));
    canvas.addEventListener("pointerdown", (event) => this.#point(event));
    canvas.addEventListener("keydown", (event) => this.#key(event));
    new ResizeObserver(() => this.draw()).observe(canvas);
  }

  /**
   * Draw a matrix. Gives the value at which colours end: the highest but for the diagonal, which is 1 in any case.
   * @param {Float32Array} values  Row-major, count x count.
   * @param {number} count
   */
  show(values, count) {
    this.#values = values;
    this.#count = count;
    this.#cell = this.#closestPair();
    this.#top = Math.max(0.2, values[this.#cell[0] * count + this.#cell[1]]);
    this.draw();
    this.#read();
    return this.#top;
  }

  draw() {
    const { dark, ramp } = scheme();
    const context = prepare(this.#canvas);
    const side = this.#canvas.width;
    const edge = (/** @type {number} */ index) => Math.round((index * side) / this.#count);
    for (let row = 0; row < this.#count; row++) {
      for (let column = 0; column < this.#count; column++) {
        context.fillStyle = ramp(this.#values[row * this.#count + column] / this.#top);
        const [x, y] = [edge(column), edge(row)];
        context.fillRect(x, y, edge(column + 1) - x, edge(row + 1) - y);
      }
    }
    if (this.#count) this.#mark(context, edge, dark);
    drawScale(this.#scale, ramp);
  }

  /**
   * Frame the cell that is being read, and its row and column.
   * @param {CanvasRenderingContext2D} context
   * @param {(index: number) => number} edge
   * @param {boolean} dark
   */
  #mark(context, edge, dark) {
    const [row, column] = this.#cell;
    const [x, y, width, height] = [edge(column), edge(row), edge(column + 1) - edge(column), edge(row + 1) - edge(row)];
    const frame = (/** @type {string} */ colour, /** @type {number} */ line, /** @type {number[]} */ ...box) => {
      context.strokeStyle = colour;
      context.lineWidth = line * devicePixelRatio;
      context.strokeRect(box[0], box[1], box[2], box[3]);
    };
    const hair = dark ? "#ffffff66" : "#00000055";
    frame(hair, 1, 0, y, this.#canvas.width, height);
    frame(hair, 1, x, 0, width, this.#canvas.height);
    frame("#000", 5, x, y, width, height);
    frame("#fff", 2, x, y, width, height);
  }

  /** The two different parts that are most alike. */
  #closestPair() {
    let best = [0, 0];
    let highest = -Infinity;
    for (let row = 0; row < this.#count; row++) {
      for (let column = 0; column < row; column++) {
        const value = this.#values[row * this.#count + column];
        if (value > highest) [highest, best] = [value, [row, column]];
      }
    }
    return best;
  }

  /** @param {PointerEvent} event */
  #point({ offsetX, offsetY }) {
    const index = (/** @type {number} */ offset, /** @type {number} */ length) =>
      Math.min(this.#count - 1, Math.max(0, Math.floor((offset / length) * this.#count)));
    this.#move(index(offsetY, this.#canvas.clientHeight), index(offsetX, this.#canvas.clientWidth));
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    const step = DIRECTIONS[/** @type {keyof typeof DIRECTIONS} */ (event.key)];
    if (!step) return;
    event.preventDefault();
    const [row, column] = this.#cell.map((at, axis) => (at + step[axis] + this.#count) % this.#count);
    this.#move(row, column);
  }

  /** @param {number} row @param {number} column */
  #move(row, column) {
    if (!this.#count || (row === this.#cell[0] && column === this.#cell[1])) return;
    this.#cell = [row, column];
    this.draw();
    this.#read();
  }

  #read() {
    const [row, column] = this.#cell;
    if (this.#count) this.#onread(row, column, this.#values[row * this.#count + column]);
  }
}

/** The canvas's context, its pixels matched to the screen's. @param {HTMLCanvasElement} canvas */
function prepare(canvas) {
  const [width, height] = [canvas.clientWidth, canvas.clientHeight].map((length) => Math.round(length * devicePixelRatio));
  if (canvas.width !== width) canvas.width = width;
  if (canvas.height !== height) canvas.height = height;
  return /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
}

/** @param {HTMLCanvasElement} canvas @param {(value: number) => string} ramp */
function drawScale(canvas, ramp) {
  const context = prepare(canvas);
  for (let x = 0; x < canvas.width; x++) {
    context.fillStyle = ramp(x / canvas.width);
    context.fillRect(x, 0, 1, canvas.height);
  }
}

/** Colours of similarities from 0 to 1 in the scheme that is shown. */
function scheme() {
  const chosen = document.documentElement.dataset.theme;
  const dark = chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const stops = RAMPS[dark ? "dark" : "light"].map((hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)));
  const palette = Array.from({ length: 256 }, (_, index) => {
    const position = (index / 255) * (stops.length - 1);
    const low = Math.min(stops.length - 2, Math.floor(position));
    const mixed = stops[low].map((from, channel) => from + (stops[low + 1][channel] - from) * (position - low));
    return `rgb(${mixed.map(Math.round).join(" ")})`;
  });
  return { dark, ramp: (/** @type {number} */ value) => palette[Math.round(255 * Math.min(1, Math.max(0, value)))] };
}
