// One small chart for each metric of the run; a click selects the metric.
const miniature = ({ steps, values }) => {
  const places = onTrainingAxis(steps, run());
  return sparkline(trainingAxis().layout.type === "log" ? places.map(Math.log10) : places, Array.from(array(values.$)));
};
const multiple = (metric, subset) => {
  const { mean } = run().metrics[metric][subset];
  const values = Array.from(array(mean.values.$));
  const button = Object.assign(document.createElement("button"), { type: "button", className: "multiple" });
  const { title } = tree.metrics[metric];
  const course = values.length ? `${number(values[0])} \u2192 ${number(values.at(-1))}` : "no value";
  button.append(cell("span", title), ...(values.length ? [miniature(mean)] : []), cell("small", course));
  button.setAttribute("aria-pressed", String(metric === state.metric));
  button.onclick = () => {
    state.metric = metric;
    changed();
    byId("charts-section").scrollIntoView();
  };
  return button;
};
const showMultiples = () => {
  const { metrics } = run();
  byId("multiples-section").hidden = !trained() || Object.keys(metrics).length < 3;
  if (byId("multiples-section").hidden) return;
  const groups = tree.families.map(([family, members]) => {
    const measured = members.filter((metric) => metrics[metric]);
    if (!measured.length) return [];
    const group = Object.assign(document.createElement("div"), { className: "family" });
    const subset = (metric) => (metrics[metric][state.subset] ? state.subset : Object.keys(metrics[metric])[0]);
    group.append(...measured.map((metric) => multiple(metric, subset(metric))));
    return [cell("h3", family), group];
  });
  byId("multiples").replaceChildren(...groups.flat());
};
