// Several runs in the same charts, or their differences from a baseline.
const member = (number) => tree.runs[number].metrics[state.metric]?.[state.subset];
const baseline = () => (state.baseline === "" ? null : names.indexOf(state.baseline));
const baselineText = () => `difference from ${state.baseline}`;

// value at a depth, on the straight line between the two layers around it
const atDepth = (depths, values, depth) => {
  const after = depths.findIndex((one) => one >= depth - 1e-6);
  if (after < 0) return NaN;
  if (after === 0 || Math.abs(depths[after] - depth) < 1e-6) return depths[after] > depth + 1e-6 ? NaN : values[after];
  const share = (depth - depths[after - 1]) / (depths[after] - depths[after - 1]);
  return values[after - 1] + share * (values[after] - values[after - 1]);
};
const column = ({ $ }, index) => array($).map((layer) => layer[index]);
const depthsOf = (one) => Array.from(array(one.depths.$));

// each function returns what the baseline has where a trace has a value, nothing at steps at which it was not measured
const baselineProfile = (trace) => {
  const base = member(baseline());
  const columns = [base.values, base.lows, base.highs].map((of) => column(of, base.steps.length - 1));
  return Array.from(trace.x, (depth) => columns.map((of) => atDepth(depthsOf(base), of, depth)));
};
const baselineMeans = (trace) => {
  const { steps, values, lows, highs } = member(baseline()).mean;
  const known = new Map(steps.map((step, index) => [step, [values, lows, highs].map(({ $ }) => array($)[index])]));
  return trace.text.map((step) => known.get(Number(step.replaceAll(",", ""))));
};
// the intervals of two runs are taken as independent, a run and a mean over seeds that it is one of are not
const subtractFrom = (traces, layout, find) => {
  const values = traces.filter((trace) => trace.meta?.role === "value");
  for (const trace of values) {
    const base = find(trace);
    const shared = Array.from(base.keys()).filter((index) => base[index]);
    const exact = shared.map((index) => trace.customdata[index] - base[index][0]);
    const { run: own, seeds = [own], low, high } = trace.meta;
    const isIndependent = low && !seeds.includes(baseline());
    // an end of a difference is as far as one end of the run and the other end of the baseline
    const reach = (ends, of) => shared.map((index) => Math.hypot(ends[index] - trace.customdata[index], base[index][of] - base[index][0]));
    const [below, above] = isIndependent ? [reach(low, 2), reach(high, 1)] : [null, null];
    const ends = isIndependent
      ? { low: exact.map((value, at) => value - below[at]), high: exact.map((value, at) => value + above[at]) }
      : { low: null, high: null };
    const x = shared.map((index) => trace.x[index]);
    const text = trace.text && shared.map((index) => trace.text[index]);
    Object.assign(trace, { x, y: exact, text, customdata: exact, meta: { ...trace.meta, ...ends, floor: null } });
  }
  traces.splice(0, traces.length, ...values);
  layout.yaxis = signedAxis(baselineText());
};
const subtractHeatmap = (traces, layout) => {
  const base = member(baseline());
  for (const trace of traces) {
    const { steps } = member(trace.meta.member);
    const z = Array.from(trace.customdata, (layer, row) => Array.from(layer, (value, index) => {
      const at = base.steps.indexOf(steps[index]);
      return at < 0 ? NaN : value - atDepth(depthsOf(base), column(base.values, at), trace.y[row]);
    }));
    Object.assign(trace, { z, customdata: z, hovertemplate: trace.hovertemplate.replace("%{customdata", "%{z") });
  }
  layout.coloraxis = signedScale(traces.flatMap(({ z }) => z.flat()).filter((value) => !Number.isNaN(value)), baselineText());
};
const ownColours = (traces) => {
  const colorscale = state.baseline === "" ? "Viridis" : tree.diverging;
  const middle = state.baseline === "" ? {} : { zmid: 0 };
  for (const trace of traces) {
    delete trace.coloraxis;
    Object.assign(trace, { colorscale, showscale: false, ...middle });
  }
};
const compare = (title) => {
  const parts = tree.comparisons[state.metric]?.[state.subset];
  byId("comparison").hidden = !parts;
  if (!parts) return;
  if (baseline() !== null && !member(baseline())) state.baseline = "";
  const differs = baseline() !== null;
  byId("comparison-note").textContent = parts.note;
  const leftOut = new Set((parts.training?.data ?? []).filter(lacksTokens).map(({ meta }) => names[meta.run]));
  const note = leftOut.size ? `; left out, their tokens are not known: ${[...leftOut].join(", ")}` : "";
  const change = differs ? `; ${baselineText()}` : "";
  const hasBands = parts.profiles.data.some(({ meta }) => meta?.low);
  const band = differs && hasBands ? "; band: root of the sum of squares of both intervals" : "";
  const adapt = {
    profiles: (traces, layout) => { if (differs) subtractFrom(traces, layout, baselineProfile); },
    training: (traces, layout) => { if (differs) subtractFrom(traces, layout, baselineMeans); },
    heatmaps: (traces, layout) => {
      if (differs) subtractHeatmap(traces, layout);
      if (state.colours === "own") ownColours(traces);
    },
  };
  const colours = state.colours === "own" ? "each with colours of its own" : "one scale of colours";
  for (const [id, what, small] of [
    ["profiles", "at the end", `over relative depth${change}${band}`],
    ["training", "mean over layers", `during training${change && `${change} at the same step${band}`}${note}`],
    ["heatmaps", "by relative depth and step", `${colours}${parts.heatmaps_note}${change && `${change} at the same step and depth`}`],
  ]) {
    const describe = (traces) => `${small}; ${valueRange(exactValues(traces))}`;
    draw(id, parts[id], `${title}, ${what}`, small, { describe, adapt: adapt[id] });
  }
  // along all steps of the means above, although a loss is known from the first update on
  const means = (parts.training?.data ?? []).flatMap(({ x, meta }) => onTrainingAxis(x, tree.runs[meta.run]));
  const alongMeans = (traces, layout) => {
    const places = [...means, ...traces.flatMap(({ x }) => x)].filter((place) => !Number.isNaN(place));
    const ends = [Math.min(...places), Math.max(...places)];
    layout.xaxis.range = layout.xaxis.type === "log" ? ends.map(Math.log10) : ends;
  };
  draw("losses", tree.losses, "Losses", `during training, in the colours above${note}`, { adapt: alongMeans });
  byId("profiles-figure").parentElement.classList.toggle("alone", !parts.training);
};
