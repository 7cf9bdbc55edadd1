// The selected step: the profile, its table, and its place in the other charts.
const atStep = (column) => {
  const exact = shownValues().map((layer) => layer[column]);
  const [lows, highs] = ["lows", "highs"].map((name) =>
    array(series()[name].$).map((layer) => (subtracted() === null ? layer[column] : NaN)));
  return { exact, lows, highs };
};
const extremes = (values) => {
  const known = values.map((value, index) => [value, index]).filter(([value]) => !Number.isNaN(value));
  if (!known.length) return "no value at any layer";
  const low = known.reduce((a, b) => (b[0] < a[0] ? b : a));
  const high = known.reduce((a, b) => (b[0] > a[0] ? b : a));
  const layers = series().layers;
  return `lowest ${number(low[0])} at layer ${layers[low[1]]}, highest ${number(high[0])} at layer ${layers[high[1]]}`;
};
const stepName = (column) => {
  if (run().finished) return "finished model";
  const step = series().steps[column];
  const tokens = run().tokens?.[step];
  return `step ${formatted(step)}${tokens === undefined ? "" : `, ${shortCount(tokens)} tokens`}`;
};
// where the selected step is in the charts along the training
const FRAMED = ["course", "lines", "heatmap"];
const framePlace = (id) => {
  const [at] = onTrainingAxis([series().steps[stepIndex()]], run());
  const [x0, x1] = id === "heatmap" ? heatmapFrame(stepIndex()) : [at, at];
  return { x0, x1, visible: true };
};
// the other cloud of the same layers at the step of a column; nothing where it was not measured
const besideAt = (column) => {
  const { beside, steps } = series();
  const at = run().metrics[state.metric][beside].steps.indexOf(steps[column]);
  return besideValues().map((layer) => onValueAxis(layer[at]));
};
// the profile follows the slider at once, the other charts as soon as it rests
let resting = null;
const moveFrames = () => {
  clearTimeout(resting);
  resting = setTimeout(() => {
    for (const id of FRAMED) Plotly.relayout(id, { shapes: [{ ...byId(id).layout.shapes[0], ...framePlace(id) }] });
  }, 60);
};
const showPin = () => {
  const label = byId("subtract").parentElement;
  const step = pinned() === null ? "" : formatted(series().steps[pinned()]);
  label.hidden = pinned() === null;
  label.lastElementChild.textContent = `subtract step ${step}`;
  byId("subtract").checked = state.subtract === "yes";
  byId("pin").setAttribute("aria-pressed", String(pinned() !== null));
  byId("pin").textContent = pinned() === null ? "Pin step" : `Unpin step ${step}`;
};
// their band and its median at a step; a difference from another step has none
const showBaselines = (trace, column) => {
  const { low, median, high } = series().baselines;
  const [lows, middle, highs] = [low, median, high].map(({ $ }) =>
    Array.from(array($), (layer) => (subtracted() === null ? layer[column] : NaN)));
  const { x } = byId("profile").data[trace + 1];
  const band = outline(x, lows, highs, series().floor);
  Plotly.restyle("profile", { x: [band.x, x], y: [band.y, middle.map(onValueAxis)], customdata: [[], middle] }, [trace, trace + 1]);
};
const showStep = () => {
  const column = stepIndex();
  const shown = atStep(column);
  // the last two traces
  const number = byId("profile").data.length;
  const { x } = byId("profile").data.at(-1);
  const band = outline(x, shown.lows, shown.highs, subtracted() === null ? series().floor : null);
  const y = [band.y, shown.exact.map(onValueAxis)];
  Plotly.restyle("profile", { x: [band.x, x], y, customdata: [[], shown.exact] }, [number - 2, number - 1]);
  const beside = byId("profile").data.findIndex(({ meta }) => meta?.role === "beside");
  if (beside >= 0) Plotly.restyle("profile", { y: [besideAt(column)] }, [beside]);
  const behind = byId("profile").data.findIndex(({ meta }) => meta?.of === "baselines");
  if (behind >= 0) showBaselines(behind, column);
  showPin();
  if (!byId("heads-figure").hidden) {
    const cells = array(series().by_head.$)[column];
    Plotly.restyle("heads", { z: [cells] }, [0]);
    byId("heads-caption").querySelector("small").textContent = stepName(column);
    const all = cells.flatMap((layer) => Array.from(layer));
    byId("heads").setAttribute("aria-label", `${byId("heads-caption").firstChild.textContent}. ${stepName(column)}: ${valueRange(all)}`);
  }
  const text = `${stepName(column)}: ${extremes(shown.exact)}`;
  byId("step-text").textContent = text;
  byId("profile").setAttribute("aria-label", `${tree.metrics[state.metric].title} over depth. ${text}`);
  byId("step").value = column;
  byId("step").setAttribute("aria-valuetext", `${stepName(column)} (${column + 1} of ${series().steps.length})`);
  if (byId("as-table").open) fillTable(column, shown);
};
const cell = (kind, text, scope) => {
  const made = Object.assign(document.createElement(kind), { textContent: text });
  if (scope) made.scope = scope;
  return made;
};
const fillTable = (column, shown) => {
  const { layers, reasons } = series();
  const head = document.createElement("tr");
  head.append(...["layer", "value", "95% interval over probes", "note"].map((text) => cell("th", text, "col")));
  const rows = layers.map((layer, index) => {
    const row = document.createElement("tr");
    const [value, low, high] = [shown.exact[index], shown.lows[index], shown.highs[index]];
    const interval = Number.isFinite(low) ? `${number(low)} to ${number(high)}` : "\u2013";
    row.append(cell("th", layer, "row"), cell("td", number(value)), cell("td", interval),
      cell("td", reasons?.[index][column] ?? ""));
    return row;
  });
  const change = subtracted() === null ? "" : `, ${changeText()}`;
  const title = `${tree.metrics[state.metric].title}, ${tree.subsets[state.subset][1]}, ${run().label}, ${stepName(column)}${change}`;
  const [header, body] = [document.createElement("thead"), document.createElement("tbody")];
  header.append(head);
  body.append(...rows);
  byId("numbers-table").replaceChildren(cell("caption", title), header, body);
};
const choose = (column) => {
  const steps = series().steps;
  state.step = column >= steps.length - 1 ? "last" : String(steps[column]);
  saveState();
  showStep();
  if (trained()) moveFrames();
};
