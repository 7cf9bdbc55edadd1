// The form and the links that change the selection.
const option = (value, text) => Object.assign(document.createElement("option"), { value, textContent: text });
const SELECTS = ["run", "metric", "subset", "theme", "layer", "baseline"];
const BOXES = { alerts: ["yes", "no"], subtract: ["yes", "no"], "to-scale": ["scaled", "equal"], "own-colours": ["own", "shared"] };
const KEYS = { "to-scale": "cells", "own-colours": "colours" };
const subsetOptions = (bySubset) => Object.keys(bySubset).map((subset) => option(subset, tree.subsets[subset][0]));
const fillRuns = () => {
  byId("run").replaceChildren(...names.map((name) => option(name, name)));
  byId("run").parentElement.hidden = tree.runs.length === 1;
  byId("baseline").replaceChildren(option("", "none"), ...names.map((name) => option(name, name)));
  byId("compared-runs").replaceChildren(byId("compared-runs").firstElementChild, ...names.map((name) => {
    const label = document.createElement("label");
    const box = Object.assign(document.createElement("input"), { type: "checkbox", value: name });
    label.append(box, name);
    return label;
  }));
};
const fill = () => {
  const metrics = run().metrics;
  if (!Object.hasOwn(metrics, state.metric)) state.metric = Object.keys(metrics)[0];
  if (!Object.hasOwn(metrics[state.metric], state.subset)) state.subset = Object.keys(metrics[state.metric])[0];
  const grouped = tree.families.map(([family, members]) => {
    const group = Object.assign(document.createElement("optgroup"), { label: family });
    group.append(...members.filter((metric) => metrics[metric]).map((metric) => option(metric, tree.metrics[metric].title)));
    return group;
  });
  byId("metric").replaceChildren(...grouped.filter((group) => group.children.length));
  byId("subset").replaceChildren(...subsetOptions(metrics[state.metric]));
  if (!series().layers.map(String).includes(state.layer)) state.layer = "";
  byId("layer").replaceChildren(option("", "all layers"), ...series().layers.map((layer) => option(layer, `layer ${layer}`)));
  for (const id of SELECTS) byId(id).value = state[id];
  const counts = tree.runs.some((one) => one.tokens);
  if (!counts) state.axis = "steps";
  byId("axis").hidden = !counts;
  byId("scale").hidden = tree.runs.every((one) => one.finished);
  byId("axis-tokens").disabled = !run().tokens && !run().finished;
  byId("axis-tokens").parentElement.title = byId("axis-tokens").disabled ? `${run().label} has no token counts` : "";
  byId(`axis-${trainingUnit()}`).checked = byId(`scale-${state.scale}`).checked = true;
  for (const [id, [on]] of Object.entries(BOXES)) byId(id).checked = state[KEYS[id] ?? id] === on;
  for (const box of byId("compared-runs").querySelectorAll("input")) box.checked = !state.without.includes(box.value);
};
const theme = () => (root.dataset.theme = isDark() ? "dark" : "light");
const showPage = () => {
  for (const page of known.page) {
    byId(page).hidden = page !== state.page && !printing();
    byId(`to-${page}`).setAttribute("aria-current", page === state.page ? "page" : "false");
  }
};
const changed = () => {
  play(false);
  fill();
  theme();
  showPage();
  // a hidden figure has no width to be drawn in
  if (byId("overview").hidden) return saveState();
  show();
  byId("announcement").textContent = `Showing ${byId("profile-caption").firstChild.textContent}`;
};
// a link of a statement changes what it names; theme, axis and the rest stay
const follow = (event, hash) => {
  if (event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  const target = parameters();
  for (const key of ["page", "run", "metric", "subset", "step", "layer", "pin", "playing"]) target.delete(key);
  for (const [key, value] of new URLSearchParams(hash.slice(1))) target.set(key, value);
  location.hash = target;
  byId("charts-section").scrollIntoView();
};
const connect = () => {
  fillRuns();
  for (const id of SELECTS)
    byId(id).onchange = (event) => { state[id] = event.target.value; byId("missing-run").hidden = true; changed(); };
  for (const group of ["axis", "scale"])
    byId(group).onchange = (event) => { state[group] = event.target.value; changed(); };
  for (const [id, [on, off]] of Object.entries(BOXES))
    byId(id).onchange = (event) => { state[KEYS[id] ?? id] = event.target.checked ? on : off; changed(); };
  byId("alerts").parentElement.hidden = !tree.alerts;
  byId("controls").onsubmit = (event) => event.preventDefault();
  byId("step").oninput = (event) => { play(false); choose(Number(event.target.value)); };
  byId("play").onclick = () => play(timer === null);
  byId("pin").onclick = () => {
    state.pin = pinned() === null ? String(series().steps[stepIndex()]) : "";
    if (state.pin === "") state.subtract = "no";
    changed();
  };
  byId("download").onclick = download;
  for (const page of known.page)
    byId(`to-${page}`).onclick = (event) => { event.preventDefault(); state.page = page; changed(); scrollTo({ top: 0 }); };
  byId("as-table").ontoggle = showStep;
  byId("compared-runs").onchange = () => {
    const unchecked = byId("compared-runs").querySelectorAll("input:not(:checked)");
    state.without = Array.from(unchecked, (box) => box.value);
    changed();
  };
  dark.onchange = narrow.onchange = changed;
  byId("glance").onclick = (event) => {
    const link = event.target.closest("a");
    if (link) follow(event, link.hash);
  };
  const below = () => root.style.setProperty("--below", `${byId("controls").offsetHeight - 1}px`);
  new ResizeObserver(below).observe(byId("controls"));
};
