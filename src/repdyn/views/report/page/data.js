// The data of the page: a tree of figures and names, and the numbers that it refers to.
const byId = (id) => document.getElementById(id);
const root = document.documentElement;
const reducedMotion = matchMedia("(prefers-reduced-motion: reduce)");
const dark = matchMedia("(prefers-color-scheme: dark)");

const unzip = async (text) => {
  const packed = Uint8Array.from(atob(text.trim()), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
};
const unzipText = async (text) => new TextDecoder().decode(await unzip(text));
const floats = async (text) => {
  const planes = new Uint8Array(await unzip(text));
  const whole = new Uint8Array(planes.length);
  const size = planes.length / 4;
  for (let plane = 0; plane < 4; plane++)
    for (let place = 0; place < size; place++) whole[4 * place + plane] = planes[plane * size + place];
  return new Float32Array(whole.buffer);
};

let tree, numbers, names;
const useData = async (packed) => {
  [tree, numbers] = await Promise.all([unzipText(packed.tree).then(JSON.parse), floats(packed.numbers)]);
  // runs of the same label get a number
  names = tree.runs.map((one, index, all) =>
    all.findIndex((other) => other.label === one.label) === index ? one.label : `${one.label} (${index + 1})`);
};
const embedded = (id) => byId(id).textContent;
try {
  const library = document.createElement("script");
  const parts = { tree: embedded("tree"), numbers: embedded("numbers") };
  [, library.textContent] = await Promise.all([useData(parts), unzipText(embedded("plotly"))]);
  document.head.append(library);
} catch (error) {
  byId("error").hidden = false;
  byId("error").textContent = `The charts cannot be drawn in this browser: ${error}`;
  throw error;
}
