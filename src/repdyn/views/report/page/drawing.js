// From the tree to figures of Plotly.
const array = ([offset, ...shape]) => {
  if (shape.length === 1) return numbers.subarray(offset, offset + shape[0]);
  const size = shape.slice(1).reduce((product, one) => product * one, 1);
  return Array.from({ length: shape[0] }, (_, row) => array([offset + row * size, ...shape.slice(1)]));
};
const unpacked = (part) => {
  if (Array.isArray(part)) return part.map(unpacked);
  if (typeof part === "string") return isDark() ? (Object.hasOwn(tree.dark_colours, part) ? tree.dark_colours[part] : part) : part;
  if (part === null || typeof part !== "object") return part;
  if ("$" in part) return array(part.$);
  return Object.fromEntries(Object.entries(part).map(([key, value]) => [key, unpacked(value)]));
};
// a run without token counts is shown by steps; a finished model has neither
const trainingUnit = () => (run().tokens || run().finished ? state.axis : "steps");
const trainingAxis = () => tree.axes[`${trainingUnit()}-${state.scale}`];
const onTrainingAxis = (steps, of) => {
  const byTokens = trainingUnit() === "tokens";
  return steps.map((step) => {
    const count = byTokens ? of.tokens?.[step] ?? NaN : step;
    return trainingAxis().floor === null ? count : Math.max(count, trainingAxis().floor);
  });
};
// without the plotly button that uploads the data
const settings = { responsive: true, displaylogo: false, showSendToCloud: false, plotlyServerURL: "",
  modeBarButtons: [["toImage"]] };
const exactValues = (traces) =>
  traces.flatMap(({ customdata }) => Array.from(customdata ?? [])).flatMap((row) => (typeof row === "number" ? row : Array.from(row)));
const valueRange = (values) => {
  const known = values.filter((value) => !Number.isNaN(value));
  const [low, high] = [Math.min, Math.max].map((furthest) => known.reduce((a, b) => furthest(a, b), known[0]));
  return known.length ? `values from ${number(low)} to ${number(high)}` : "no value";
};
const lacksTokens = ({ meta }) =>
  trainingUnit() === "tokens" && meta?.along === "training" && meta.run !== undefined && !tree.runs[meta.run].tokens;
// a mean over seeds stays until none of them is shown
const isHidden = ({ meta }) => (meta?.seeds ?? [meta?.run]).every((one) => state.without.includes(names[one]));
// on narrow screens: the legend below, one heatmap under the other
const narrow = matchMedia("(max-width: 700px)");
const applyNarrowLayout = (layout) => {
  if (layout.legend) layout.legend = { ...layout.legend, orientation: "h", x: 0, y: -0.28, yanchor: "top" };
  const headings = layout.annotations ?? [];
  const number = headings.length;
  if (!layout.xaxis2) {
    // rows below each other: the first words of what is above each, small, below the button of the image
    for (const heading of headings) Object.assign(heading, { text: heading.text.split(", ")[0], font: { size: 10.5 } });
    if (number) Object.assign(layout, { margin: { ...layout.margin, t: 44 }, height: layout.height + 18 });
    return;
  }
  const rows = new Set(headings.map(({ y }) => y)).size;
  const gap = 0.3 / number;
  headings.forEach((heading, index) => {
    const up = 1 - index * (1 + gap) / number;
    const suffix = index ? index + 1 : "";
    layout[`xaxis${suffix}`].domain = [0, 1];
    layout[`yaxis${suffix}`].domain = [Math.max(0, up - (1 + gap) / number + gap), up];
    Object.assign(heading, { x: 0, y: up, font: { size: 11 } });
  });
  layout.height *= number / rows;
};
const darkOrLight = () => tree.themes[isDark() ? "dark" : "light"];
const signedScale = (values, title) => {
  const reach = values.reduce((most, value) => (Math.abs(value) > most ? Math.abs(value) : most), 0) || 1;
  return { colorscale: tree.diverging, cmin: -reach, cmax: reach,
    colorbar: { title: { text: title, side: "right", font: { size: 12 } }, thickness: 14, outlinewidth: 0 } };
};
const signedAxis = (title) => ({ type: "linear", zeroline: true, title: { text: title, font: { size: 12 } } });
// A line with intervals stands above its band: one closed area for each run of points that have an interval.
const outline = (x, lows, highs, floor) => {
  const at = { x: [], y: [] };
  let run = [];
  for (let index = 0; index <= lows.length; index++) {
    if (Number.isFinite(lows[index] + highs[index])) {
      run.push(index);
      continue;
    }
    const ends = [...run.map((one) => [one, highs]), ...run.reverse().map((one) => [one, lows])];
    at.x.push(...ends.map(([one]) => x[one]), NaN);
    at.y.push(...ends.map(([one, of]) => Math.max(of[one], floor ?? -Infinity)), NaN);
    run = [];
  }
  return at;
};
// Where the band of baselines stands behind a profile it is the only one: these have the same probe.
const withBands = (traces) => traces.flatMap((trace) => {
  const { role, of, low, high, floor, opacity } = trace.meta ?? {};
  if (role !== "value" || !low) return [trace];
  const { x, legendgroup, yaxis, line: { color } } = trace;
  return [{ ...outline(x, low, high, floor), legendgroup, yaxis, fill: "toself", fillcolor: color, mode: "lines",
    opacity: !of && traces.some(({ meta }) => meta?.of === "baselines") ? 0 : opacity, line: { width: 0 }, hoverinfo: "skip", showlegend: false, meta: { ...trace.meta, role: "band" } }, trace];
});

// Draws one figure, or hides it. `adapt` changes its traces and layout to what is chosen.
const draw = (id, part, caption, small, { describe = () => small, adapt } = {}) => {
  byId(`${id}-figure`).hidden = !part;
  if (!part) return;
  byId(`${id}-caption`).replaceChildren(caption, Object.assign(document.createElement("small"), { textContent: small }));
  const { data, layout } = unpacked(part);
  const traces = data.filter((trace) => !isHidden(trace) && !lacksTokens(trace));
  for (const trace of traces) {
    if (trace.meta?.role === "alerts") trace.visible = state.alerts === "yes";
    if (trace.meta?.along) {
      trace.x = onTrainingAxis(trace.x ?? series().steps, tree.runs[trace.meta.run ?? tree.runs.indexOf(run())]);
      layout.xaxis = { ...layout.xaxis, ...trainingAxis().layout };
    }
  }
  if (FRAMED.includes(id)) Object.assign(layout.shapes[0], framePlace(id));
  adapt?.(traces, layout);
  byId(id).setAttribute("aria-label", `${caption}. ${describe(traces)}`);
  layout.template = darkOrLight();
  layout.autosize = true;
  // while the chart shows the same, so does its detail that the reader has chosen
  layout.uirevision = `${caption} ${trainingUnit()} ${state.scale} ${state.cells}`;
  if (narrow.matches && !printing()) applyNarrowLayout(layout);
  byId(id).style.height = `${layout.height}px`;
  Plotly.react(byId(id), withBands(traces), layout, settings);
  // for the mouse alone: screen readers get the aria-label of the chart
  for (const button of byId(id).querySelectorAll(".modebar-btn")) button.tabIndex = -1;
  byId(id).querySelector(".modebar-container")?.setAttribute("aria-hidden", "true");
};
