"use strict";
// Draws the figures laid out in Python, with the numbers, the chosen step, axis and theme.
(async () => {
  const byId = (id) => document.getElementById(id);
  const root = document.documentElement;
  const reducedMotion = matchMedia("(prefers-reduced-motion: reduce)");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const number = (value) => (Number.isNaN(value) ? "no value" : String(Number(value.toPrecision(4))));
  const formatted = (value) => value.toLocaleString("en-US");

  const unzip = async (id) => {
    const packed = Uint8Array.from(atob(byId(id).textContent.trim()), (letter) => letter.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).arrayBuffer();
  };
  const readText = async (id) => new TextDecoder().decode(await unzip(id));
  const floats = async (id) => {
    const planes = new Uint8Array(await unzip(id));
    const whole = new Uint8Array(planes.length);
    const size = planes.length / 4;
    for (let plane = 0; plane < 4; plane++)
      for (let place = 0; place < size; place++) whole[4 * place + plane] = planes[plane * size + place];
    return new Float32Array(whole.buffer);
  };

  let tree, numbers;
  try {
    const library = document.createElement("script");
    [tree, numbers, library.textContent] = await Promise.all([readText("tree").then(JSON.parse), floats("numbers"), readText("plotly")]);
    document.head.append(library);
  } catch (error) {
    byId("error").hidden = false;
    byId("error").textContent = `The charts cannot be drawn in this browser: ${error}`;
    throw error;
  }

  // ------------------------------------------------------------------ the state, stored in the address
  const known = { axis: ["steps", "tokens"], scale: ["log", "linear"], theme: ["auto", "light", "dark"] };
  // runs of the same label get a number
  const names = tree.runs.map((one, index, all) =>
    all.findIndex((other) => other.label === one.label) === index ? one.label : `${one.label} (${index + 1})`);
  const first = { run: names[tree.start], metric: "", subset: "", step: "", axis: "steps", scale: "log",
    alerts: "yes", theme: "auto", playing: "no", hold: "no" };
  const state = { without: [] };
  const read = () => {
    const parameters = new URLSearchParams(location.hash.slice(1));
    for (const [key, value] of Object.entries(first)) {
      const given = parameters.get(key) ?? value;
      state[key] = (known[key] ?? [given]).includes(given) ? given : value;
    }
    state.without = parameters.getAll("without").filter((name) => names.includes(name));
    const missing = names.includes(state.run) ? "" : state.run;
    if (missing) state.run = first.run;
    // a run opens with what its address leaves out
    const { start } = run();
    const opens = !state.metric;
    if (opens) Object.assign(state, { metric: start.metric, subset: state.subset || start.subset });
    state.step ||= (opens && start.step) || "last";
    byId("missing-run").hidden = !missing;
    byId("missing-run").textContent = missing && `The run ${missing}, which the address names, is not on this page; this is ${state.run}.`;
  };
  const saveState = () => {
    const { without, ...others } = state;
    const parameters = [...Object.entries(others), ...without.map((name) => ["without", name])];
    history.replaceState(null, "", `#${new URLSearchParams(parameters)}`);
  };

  const run = () => tree.runs[names.indexOf(state.run)];
  const series = () => run().metrics[state.metric][state.subset];
  const stepIndex = () => {
    const steps = series().steps;
    if (state.step === "last") return steps.length - 1;
    const found = steps.findLastIndex((step) => step <= Number(state.step));
    return Math.max(0, found);
  };
  const printing = () => document.body.classList.contains("printing");
  const isDark = () => !printing() && (state.theme === "dark" || (state.theme === "auto" && dark.matches));

  // ------------------------------------------------------------------ from the tree to figures
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
  // on narrow screens: the legend below, one heatmap under the other
  const narrow = matchMedia("(max-width: 700px)");
  const applyNarrowLayout = (layout) => {
    if (layout.legend) layout.legend = { ...layout.legend, orientation: "h", x: 0, y: -0.28, yanchor: "top" };
    const headings = layout.annotations ?? [];
    const number = headings.length;
    if (!number) return;
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
  const draw = (id, part, caption, small, describe = () => small) => {
    byId(`${id}-figure`).hidden = !part;
    if (!part) return;
    byId(`${id}-caption`).replaceChildren(caption, Object.assign(document.createElement("small"), { textContent: small }));
    const { data, layout } = unpacked(part);
    const traces = data.filter((trace) => !state.without.includes(names[trace.meta?.run]) && !lacksTokens(trace));
    byId(id).setAttribute("aria-label", `${caption}. ${describe(traces)}`);
    for (const trace of traces) {
      if (trace.meta?.role === "alerts") trace.visible = state.alerts === "yes";
      if (trace.meta?.along) {
        trace.x = onTrainingAxis(trace.x, tree.runs[trace.meta.run ?? tree.runs.indexOf(run())]);
        layout.xaxis = trainingAxis().layout;
      }
    }
    layout.template = tree.themes[isDark() ? "dark" : "light"];
    layout.autosize = true;
    if (narrow.matches && !printing()) applyNarrowLayout(layout);
    byId(id).style.height = `${layout.height}px`;
    Plotly.react(byId(id), traces, layout, settings);
    // for the mouse alone: screen readers get the aria-label of the chart
    for (const button of byId(id).querySelectorAll(".modebar-btn")) button.tabIndex = -1;
    byId(id).querySelector(".modebar-container")?.setAttribute("aria-hidden", "true");
  };

  // ------------------------------------------------------------------ the chosen step
  const atStep = (column) => {
    const { values, margins, floor } = series();
    const exact = array(values.$).map((layer) => layer[column]);
    const margin = array(margins.$).map((layer) => layer[column] || 0);
    const placed = (value) => (floor === null ? value : Math.max(value, floor));
    return { exact, margin, value: exact.map(placed), low: exact.map((value, layer) => placed(value - margin[layer])),
      high: exact.map((value, layer) => placed(value + margin[layer])) };
  };
  const extremes = (values) => {
    const known = values.map((value, index) => [value, index]).filter(([value]) => !Number.isNaN(value));
    if (!known.length) return "no value at any layer";
    const low = known.reduce((a, b) => (b[0] < a[0] ? b : a));
    const high = known.reduce((a, b) => (b[0] > a[0] ? b : a));
    const layers = series().layers;
    return `lowest ${number(low[0])} at layer ${layers[low[1]]}, highest ${number(high[0])} at layer ${layers[high[1]]}`;
  };
  const name = (column) => {
    if (run().finished) return "finished model";
    const step = series().steps[column];
    const tokens = run().tokens?.[step];
    return `step ${formatted(step)}${tokens === undefined ? "" : `, ${tokens.toLocaleString("en-US", { notation: "compact" })} tokens`}`;
  };
  const showStep = () => {
    const column = stepIndex();
    const shown = atStep(column);
    const data = byId("profile").data;
    const roles = { y: [], customdata: [] };
    const places = [];
    data.forEach((trace, index) => {
      const role = trace.meta?.role;
      if (!role) return;
      places.push(index);
      roles.y.push(shown[role]);
      roles.customdata.push(shown.exact);
    });
    Plotly.restyle("profile", roles, places);
    if (!byId("heatmap-figure").hidden)
      Plotly.relayout("heatmap", { "shapes[0].x0": column - 0.5, "shapes[0].x1": column + 0.5 });
    if (!byId("heads-figure").hidden) {
      const cells = array(series().by_head.$)[column];
      Plotly.restyle("heads", { z: [cells] }, [0]);
      byId("heads-caption").querySelector("small").textContent = name(column);
      const all = cells.flatMap((layer) => Array.from(layer));
      byId("heads").setAttribute("aria-label", `${byId("heads-caption").firstChild.textContent}. ${name(column)}: ${valueRange(all)}`);
    }
    const text = `${name(column)}: ${extremes(shown.exact)}`;
    byId("step-text").textContent = text;
    byId("profile").setAttribute("aria-label", `${tree.metrics[state.metric].title} over depth. ${text}`);
    byId("step").value = column;
    byId("step").setAttribute("aria-valuetext", `${name(column)} (${column + 1} of ${series().steps.length})`);
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
    head.append(...["layer", "value", "95 % interval over probes", "note"].map((text) => cell("th", text, "col")));
    const rows = layers.map((layer, index) => {
      const row = document.createElement("tr");
      const [value, margin] = [shown.exact[index], shown.margin[index]];
      const interval = margin ? `${number(value - margin)} to ${number(value + margin)}` : "\u2013";
      row.append(cell("th", layer, "row"), cell("td", number(value)), cell("td", interval),
        cell("td", reasons?.[index][column] ?? ""));
      return row;
    });
    const title = `${tree.metrics[state.metric].title}, ${tree.subsets[state.subset][1]}, ${run().label}, ${name(column)}`;
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
  };

  // ------------------------------------------------------------------ playing
  let timer = null;
  const play = (on) => {
    clearInterval(timer);
    timer = null;
    state.playing = on ? "yes" : "no";
    byId("play").setAttribute("aria-pressed", String(on));
    byId("play").lastElementChild.textContent = on ? "Pause" : "Play";
    byId("play").firstElementChild.textContent = on ? "\u23F8" : "\u25B6";
    saveState();
    if (!on) return;
    if (stepIndex() === series().steps.length - 1) choose(0);
    // slower if the user prefers reduced motion
    const wait = reducedMotion.matches ? 1200 : Math.max(80, Math.min(400, 12000 / series().steps.length));
    timer = setInterval(() => {
      const next = stepIndex() + 1;
      choose(next);
      if (next >= series().steps.length - 1) play(false);
    }, wait);
  };

  // ------------------------------------------------------------------ everything
  const describeValues = () => {
    const all = array(series().values.$).flatMap((layer) => Array.from(layer));
    return `${series().layers.length} layers by ${series().steps.length} steps, ${valueRange(all)}`;
  };
  const show = () => {
    const now = series();
    const title = `${tree.metrics[state.metric].title}, ${tree.subsets[state.subset][1]}`;
    const several = now.steps.length > 1 && !run().finished;
    byId("meaning").textContent = tree.metrics[state.metric].meaning;
    for (const part of [byId("play"), byId("step"), byId("step").labels[0]]) part.hidden = !several;
    byId("step").max = now.steps.length - 1;
    const label = tree.runs.length > 1 ? `${run().label}: ` : "";
    draw("heatmap", several ? now.heatmap : null, `${label}${title}`, `by layer and step${now.reasons ? "; grey: no value" : ""}`, describeValues);
    draw("profile", now.profile, `${label}${title}`, [run().finished ? "over depth" : "over depth, at the chosen step", now.interval].filter(Boolean).join("; "));
    draw("means", several ? now.means : null, `${label}${title}`, now.note,
      (traces) => `${now.note}; ${now.steps.length} steps, ${valueRange(exactValues(traces))}`);
    draw("heads", now.heads, `${label}${title}, by attention head`, name(stepIndex()));
    byId("heatmap-figure").parentElement.classList.toggle("alone", !several);
    if (several) {
      byId("heatmap").removeAllListeners("plotly_click");
      byId("heatmap").on("plotly_click", ({ points }) => choose(now.heatmap.data[0].x.indexOf(String(points[0].x))));
    }
    showStep();
    compare(title);
    saveState();
  };
  const compare = (title) => {
    const parts = tree.comparisons[state.metric]?.[state.subset];
    byId("comparison").hidden = !parts;
    if (!parts) return;
    byId("comparison-note").textContent = parts.note;
    const leftOut = new Set((parts.training?.data ?? []).filter(lacksTokens).map(({ meta }) => names[meta.run]));
    const note = leftOut.size ? `; left out, their tokens are not known: ${[...leftOut].join(", ")}` : "";
    const describe = (small) => (traces) => `${small}; ${valueRange(exactValues(traces))}`;
    for (const [id, what, small] of [
      ["profiles", "at the end", "over relative depth"],
      ["training", "mean over layers", `during training${note}`],
      ["heatmaps", "by relative depth and step", parts.heatmaps_note],
    ]) draw(id, parts[id], `${title}, ${what}`, small, describe(small));
    byId("profiles-figure").parentElement.classList.toggle("alone", !parts.training);
  };

  // ------------------------------------------------------------------ controls
  const option = (value, text) => Object.assign(document.createElement("option"), { value, textContent: text });
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
    byId("subset").replaceChildren(...Object.keys(metrics[state.metric]).map((subset) => option(subset, tree.subsets[subset][0])));
    for (const id of ["run", "metric", "subset", "theme"]) byId(id).value = state[id];
    const counts = tree.runs.some((one) => one.tokens);
    if (!counts) state.axis = "steps";
    byId("axis").hidden = !counts;
    byId("scale").hidden = tree.runs.every((one) => one.finished);
    byId("axis-tokens").disabled = !run().tokens && !run().finished;
    byId("axis-tokens").parentElement.title = byId("axis-tokens").disabled ? `${run().label} has no token counts` : "";
    byId(`axis-${trainingUnit()}`).checked = byId(`scale-${state.scale}`).checked = true;
    byId("alerts").checked = state.alerts === "yes";
    for (const box of byId("compared-runs").querySelectorAll("input")) box.checked = !state.without.includes(box.value);
  };
  const theme = () => (root.dataset.theme = isDark() ? "dark" : "light");
  const changed = () => {
    play(false);
    fill();
    theme();
    show();
    byId("announcement").textContent = `Showing ${byId("profile-caption").firstChild.textContent}`;
  };
  // a link of a statement changes what it names; theme, axis and the rest stay
  const follow = (event, hash) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    const { axis, scale, alerts, theme: chosen, hold } = state;
    const parameters = new URLSearchParams({ axis, scale, alerts, theme: chosen, hold });
    for (const [key, value] of new URLSearchParams(hash.slice(1))) parameters.set(key, value);
    for (const name of state.without) parameters.append("without", name);
    location.hash = parameters;
    byId("charts-section").scrollIntoView();
  };
  const connect = () => {
    byId("run").append(...names.map((name) => option(name, name)));
    byId("run").parentElement.hidden = tree.runs.length === 1;
    for (const id of ["run", "metric", "subset", "theme"])
      byId(id).onchange = (event) => { state[id] = event.target.value; byId("missing-run").hidden = true; changed(); };
    for (const group of ["axis", "scale"])
      byId(group).onchange = (event) => { state[group] = event.target.value; changed(); };
    byId("alerts").onchange = (event) => { state.alerts = event.target.checked ? "yes" : "no"; changed(); };
    byId("alerts").parentElement.hidden = !tree.alerts;
    byId("controls").onsubmit = (event) => event.preventDefault();
    byId("step").oninput = (event) => { play(false); choose(Number(event.target.value)); };
    byId("play").onclick = () => play(timer === null);
    byId("as-table").ontoggle = showStep;
    byId("compared-runs").append(...names.map((name) => {
      const label = document.createElement("label");
      const box = Object.assign(document.createElement("input"), { type: "checkbox", value: name });
      label.append(box, name);
      return label;
    }));
    byId("compared-runs").onchange = () => {
      const unchecked = byId("compared-runs").querySelectorAll("input:not(:checked)");
      state.without = Array.from(unchecked, (box) => box.value);
      changed();
    };
    dark.onchange = narrow.onchange = changed;
    for (const link of document.querySelectorAll("#glance a")) link.onclick = (event) => follow(event, link.hash);
    const below = () => root.style.setProperty("--below", `${byId("controls").offsetHeight - 1}px`);
    new ResizeObserver(below).observe(byId("controls"));
  };

  // ------------------------------------------------------------------ on paper
  let closed = [];
  onbeforeprint = () => {
    document.body.classList.add("printing");
    closed = [...document.querySelectorAll("details:not([open])")];
    for (const one of closed) one.open = true;
    theme();
    show();
    for (const plot of document.querySelectorAll(".js-plotly-plot")) Plotly.relayout(plot, { width: plot.clientWidth });
  };
  onafterprint = () => {
    document.body.classList.remove("printing");
    for (const one of closed) one.open = false;
    for (const plot of document.querySelectorAll(".js-plotly-plot")) Plotly.relayout(plot, { width: null, autosize: true });
    theme();
    show();
  };

  // ------------------------------------------------------------------ a running training
  const VIEW_KEY = "repdyn-view";
  // details elements by section and text; numbers in the text change
  const detailsByKey = () => {
    const counts = {};
    return [...document.querySelectorAll("details")].map((one) => {
      const text = one.firstElementChild.textContent.replace(/\d+/g, "");
      const key = `${one.closest("section")?.getAttribute("aria-labelledby")} ${text}`;
      counts[key] = (counts[key] ?? 0) + 1;
      return [`${key} ${counts[key]}`, one];
    });
  };
  const saveView = () => {
    const open = detailsByKey().filter(([, one]) => one.open).map(([key]) => key);
    const view = { focus: document.activeElement?.id ?? "", open, y: scrollY };
    // storage may be disabled
    try { sessionStorage.setItem(VIEW_KEY, JSON.stringify(view)); } catch { return; }
  };
  const restoreView = () => {
    let view = null;
    try {
      view = JSON.parse(sessionStorage.getItem(VIEW_KEY));
      sessionStorage.removeItem(VIEW_KEY);
    } catch { return; }
    if (!view) return;
    for (const [key, one] of detailsByKey()) if (view.open.includes(key)) one.open = true;
    showStep();
    if (view.focus) byId(view.focus)?.focus({ preventScroll: true });
    scrollTo({ top: view.y, behavior: "instant" });
  };
  const live = () => {
    const { written, every, stale } = tree.live;
    const age = () => Date.now() / 1000 - written;
    const showAge = () => {
      const clock = new Date(written * 1000).toISOString().slice(11, 19);
      const minutes = Math.round(age() / 60);
      const old = age() > stale;
      byId("live").hidden = false;
      byId("live").textContent = old ? `Last written ${clock} UTC, ${formatted(minutes)} minutes ago: no longer live.` : `Live, written ${clock} UTC.`;
      return old;
    };
    const showHold = () => {
      byId("hold").setAttribute("aria-pressed", String(state.hold === "yes"));
      byId("hold").textContent = state.hold === "yes" ? "Go on updating" : "Hold updates";
    };
    byId("hold").hidden = false;
    byId("hold").onclick = () => { state.hold = state.hold === "yes" ? "no" : "yes"; showHold(); saveState(); };
    showHold();
    showAge();
    let due = Date.now() + 1000 * every;
    setInterval(() => {
      const old = showAge();
      if (Date.now() < due || state.hold === "yes" || document.hidden || printing()) return;
      // a stale page is refreshed less often
      due = Date.now() + 1000 * every * (old ? 10 : 1);
      saveView();
      location.reload();
    }, 500);
    restoreView();
  };

  const begin = () => {
    read();
    const resume = state.playing === "yes" && !reducedMotion.matches;
    changed();
    if (resume) play(true);
    root.dataset.ready = "yes";
  };
  read();
  connect();
  begin();
  // after an edit of the address, or a link within this page
  onhashchange = begin;
  if (tree.live) live();
})();
