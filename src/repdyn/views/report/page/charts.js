// The charts of the selected run and metric.
const describeValues = () => {
  const all = array(series().values.$).flatMap((layer) => Array.from(layer));
  return `${series().layers.length} layers by ${series().steps.length} steps, ${valueRange(all)}`;
};
const trained = () => series().steps.length > 1 && !run().finished;
const changeText = () => `difference from step ${formatted(series().steps[subtracted()])}`;
// values by layer and step, without those of the subtracted step
const shownValues = () => {
  const values = array(series().values.$);
  const base = subtracted();
  return base === null ? values : values.map((layer) => layer.map((value) => value - layer[base]));
};
// the same of the other cloud of the same layers, with the values of its own steps
const besideValues = () => {
  const { beside, steps } = series();
  const other = run().metrics[state.metric][beside];
  const values = array(other.values.$);
  const base = subtracted() === null ? null : other.steps.indexOf(steps[subtracted()]);
  return base === null ? values : values.map((layer) => layer.map((value) => value - layer[base]));
};
const onValueAxis = (value) => (series().floor === null || subtracted() !== null ? value : Math.max(value, series().floor));

// ends of the columns of a heatmap: halfway between the steps, as the axis shows them
const columnEdges = () => {
  const at = onTrainingAxis(series().steps, run());
  const isLog = trainingAxis().layout.type === "log";
  const places = isLog ? at.map(Math.log10) : at;
  const between = places.slice(1).map((place, index) => (place + places[index]) / 2);
  const edges = [2 * places[0] - between[0], ...between, 2 * places.at(-1) - between.at(-1)];
  return isLog ? edges.map((edge) => 10 ** edge) : edges;
};
const heatmapFrame = (column) => {
  const edges = state.cells === "scaled" ? columnEdges() : null;
  return edges ? [edges[column], edges[column + 1]] : [column - 0.5, column + 0.5];
};
const adaptHeatmap = (traces, layout) => {
  if (subtracted() !== null) {
    const changes = shownValues();
    const where = traces[0].hovertemplate.split("<b>")[0];
    Object.assign(traces[0], { z: changes, hovertemplate: `${where}<b>%{z:${tree.pointed}}</b> ${changeText()}<extra></extra>` });
    layout.coloraxis = signedScale(changes.flatMap((layer) => Array.from(layer)), changeText());
  }
  if (state.cells !== "scaled") return;
  const columns = traces[0].x;
  const edges = columnEdges();
  const at = onTrainingAxis(series().steps, run());
  for (const trace of traces) {
    if (trace.meta?.role === "alerts") trace.x = trace.x.map((name) => at[columns.indexOf(name)]);
    else Object.assign(trace, { x: edges, hovertext: series().layers.map(() => columns),
      hovertemplate: trace.hovertemplate.replace("%{x}", "%{hovertext}") });
  }
  layout.xaxis = { ...trainingAxis().layout, showgrid: false };
};
const adaptLines = (traces, layout) => {
  const values = shownValues();
  const { layers, beside } = series();
  for (const trace of traces) {
    const { row, role } = trace.meta;
    const isBeside = role === "layer beside";
    const { steps } = isBeside ? run().metrics[state.metric][beside] : series();
    const exact = isBeside ? besideValues()[row] : values[row];
    const chosen = state.layer === String(layers[row]);
    const cloud = isBeside ? `, ${tree.subsets[beside][1]}` : "";
    Object.assign(trace, { y: Array.from(exact, onValueAxis), text: steps.map(formatted), customdata: exact,
      opacity: state.layer === "" || chosen ? 1 : 0.2,
      hovertemplate: `layer ${layers[row]}${cloud}, step %{text}: <b>%{customdata:${tree.pointed}}</b><extra></extra>` });
    if (chosen) trace.line.width = 3.5;
  }
  if (subtracted() !== null) layout.yaxis = signedAxis(changeText());
};
const adaptProfile = (traces, layout) => {
  const values = shownValues();
  for (const trace of traces)
    if (trace.meta?.role === "trail") trace.y = values.map((layer) => onValueAxis(layer[trace.meta.column]));
  if (pinned() !== null) {
    const y = values.map((layer) => onValueAxis(layer[pinned()]));
    const color = darkOrLight().layout.font.color;
    traces.splice(-1, 0, { x: traces.at(-1).x, y, mode: "lines", line: { color, width: 2, dash: "dot" },
      name: `${formatted(series().steps[pinned()])}, pinned`, hovertemplate: `layer %{x}, pinned: <b>%{y:${tree.pointed}}</b><extra></extra>` });
  }
  if (subtracted() !== null) layout.yaxis = signedAxis(changeText());
};

const besideText = () => (series().beside ? `; dashed: ${tree.clouds[series().beside]}` : "");

const show = () => {
  const now = series();
  const title = `${tree.metrics[state.metric].title}, ${tree.subsets[state.subset][1]}`;
  const label = tree.runs.length > 1 ? `${run().label}: ` : "";
  const caption = `${label}${title}`;
  const change = subtracted() === null ? "" : `; ${changeText()}`;
  byId("meaning").textContent = tree.metrics[state.metric].meaning;
  for (const part of [byId("play"), byId("step"), byId("step").labels[0], byId("pin")]) part.hidden = !trained();
  byId("step").max = now.steps.length - 1;
  draw("course", now.course, `${label}Course of training`, (!now.baselines && now.interval) || "means over layers",
    { describe: () => `loss, alerts and means over layers at ${now.steps.length} steps` });
  draw("heatmap", now.heatmap, caption, `by layer and step${change}${now.reasons ? "; grey: no value" : ""}`,
    { describe: describeValues, adapt: adaptHeatmap });
  draw("lines", now.lines, caption, `each layer during training, dark to light from the first to the last${besideText()}${change}`,
    { describe: describeValues, adapt: adaptLines });
  draw("profile", now.profile, caption, [run().finished ? "over depth" : "over depth, at the selected step",
    subtracted() === null && now.baselines && `grey: ${now.baselines.name}`,
    subtracted() === null ? !now.baselines && now.interval : changeText()].filter(Boolean).join("; "), { adapt: adaptProfile });
  draw("heads", now.heads, `${caption}, by attention head`, stepName(stepIndex()));
  for (const id of ["course", "heatmap", "lines"]) selectOnClick(id);
  showStep();
  showMultiples();
  compare(title);
  saveState();
};
// a click selects the measured step below the pointer
const selectOnClick = (id) => {
  if (byId(`${id}-figure`).hidden) return;
  byId(id).removeAllListeners("plotly_click");
  byId(id).on("plotly_click", ({ points }) => {
    const point = points[0];
    const { steps } = series();
    if (Array.isArray(point.pointNumber)) return choose(point.pointNumber[1]);
    const step = Number(String(point.text ?? point.data.x[point.pointNumber]).replaceAll(",", ""));
    if (id === "lines") {
      state.layer = String(series().layers[point.data.meta.row]);
      changed();
    }
    choose(Math.max(0, steps.findLastIndex((one) => one <= step)));
  });
};
