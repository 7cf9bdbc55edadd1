// What the reader has chosen; stored in the address where it differs from the first choice.
const first = { page: "overview", run: "", metric: "", subset: "", step: "", axis: "steps", scale: "log", cells: "equal",
  layer: "", pin: "", subtract: "no", baseline: "", colours: "shared", alerts: "yes", theme: "auto", playing: "no", hold: "no" };
const known = { page: ["overview", "provenance"], axis: ["steps", "tokens"], scale: ["log", "linear"], cells: ["equal", "scaled"],
  subtract: ["no", "yes"], colours: ["shared", "own"], theme: ["auto", "light", "dark"] };
const state = { without: [] };
const read = () => {
  const parameters = new URLSearchParams(location.hash.slice(1));
  for (const [key, value] of Object.entries(first)) {
    const given = parameters.get(key) ?? value;
    state[key] = (known[key] ?? [given]).includes(given) ? given : value;
  }
  state.without = parameters.getAll("without").filter((name) => names.includes(name));
  if (!names.includes(state.baseline)) state.baseline = "";
  const missing = names.includes(state.run) ? "" : state.run;
  if (!names.includes(state.run)) state.run = names[tree.start];
  // a run opens with what its address leaves out
  const { start } = run();
  if (!state.metric) Object.assign(state, { metric: start.metric, subset: state.subset || start.subset });
  state.step ||= "last";
  byId("missing-run").hidden = !missing;
  byId("missing-run").textContent = missing && `The run ${missing}, which the address names, is not on this page; this is ${state.run}.`;
};
const parameters = () => {
  const { without, ...others } = state;
  const chosen = Object.entries(others).filter(([key, value]) => value !== first[key]);
  return new URLSearchParams([...chosen, ...without.map((name) => ["without", name])]);
};
const saveState = () => history.replaceState(null, "", `#${parameters()}`);

const run = () => tree.runs[names.indexOf(state.run)];
const series = () => run().metrics[state.metric][state.subset];
const columnOf = (chosen) => {
  const { steps } = series();
  return chosen === "last" ? steps.length - 1 : Math.max(0, steps.findLastIndex((step) => step <= Number(chosen)));
};
const stepIndex = () => columnOf(state.step);
// column of the pinned step; null if there is none
const pinned = () => (state.pin === "" || series().steps.length < 2 ? null : columnOf(state.pin));
// column that is subtracted from all others; null if there is none
const subtracted = () => (state.subtract === "yes" ? pinned() : null);
const printing = () => document.body.classList.contains("printing");
const isDark = () => !printing() && (state.theme === "dark" || (state.theme === "auto" && dark.matches));
