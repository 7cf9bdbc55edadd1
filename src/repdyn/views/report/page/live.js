// The page of a training in progress.
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
const currentView = () => {
  const open = detailsByKey().filter(([, one]) => one.open).map(([key]) => key);
  return { focus: document.activeElement?.id ?? "", open, y: scrollY };
};
const showView = (view) => {
  for (const [key, one] of detailsByKey()) if (view.open.includes(key)) one.open = true;
  if (!byId("overview").hidden) showStep();
  if (view.focus) byId(view.focus)?.focus({ preventScroll: true });
  scrollTo({ top: view.y, behavior: "instant" });
};
const saveView = () => {
  // storage may be disabled
  try { sessionStorage.setItem(VIEW_KEY, JSON.stringify(currentView())); } catch { return; }
};
const restoreView = () => {
  let view = null;
  try {
    view = JSON.parse(sessionStorage.getItem(VIEW_KEY));
    sessionStorage.removeItem(VIEW_KEY);
  } catch { return; }
  if (view) showView(view);
};
const held = () => state.hold === "yes" || document.hidden || printing();
const connectHold = () => {
  const show = () => {
    byId("hold").setAttribute("aria-pressed", String(state.hold === "yes"));
    byId("hold").textContent = state.hold === "yes" ? "Go on updating" : "Hold updates";
  };
  byId("live").hidden = byId("hold").hidden = false;
  byId("hold").onclick = () => { state.hold = state.hold === "yes" ? "no" : "yes"; show(); saveState(); };
  show();
};

// A file: it reloads itself at an interval.
const reload = () => {
  const { written, every, stale } = tree.live;
  const age = () => Date.now() / 1000 - written;
  const showAge = () => {
    const clock = new Date(written * 1000).toISOString().slice(11, 19);
    const minutes = Math.round(age() / 60);
    const old = age() > stale;
    byId("live").textContent = old ? `Last written ${clock} UTC, ${formatted(minutes)} minutes ago: no longer live.` : `Live, written ${clock} UTC.`;
    return old;
  };
  connectHold();
  showAge();
  let due = Date.now() + 1000 * every;
  setInterval(() => {
    const old = showAge();
    if (Date.now() < due || held()) return;
    // a stale page is refreshed less often
    due = Date.now() + 1000 * every * (old ? 10 : 1);
    saveView();
    location.reload();
  }, 500);
  restoreView();
};

// A page of a server: events say that there is something new, which is fetched.
const update = async () => {
  const answer = await fetch(tree.live.data);
  if (!answer.ok) throw new Error(answer.status === 404 ? "the run is gone" : `status ${answer.status}`);
  const { packed, parts } = await answer.json();
  await useData(packed);
  const view = currentView();
  for (const [name, html] of Object.entries(parts)) byId(`part-${name}`).innerHTML = html;
  fillRuns();
  begin();
  showView(view);
};
const listen = () => {
  let versions = tree.live.versions, latest = versions, due = 0, busy = false;
  const say = (text) => (byId("live").textContent = text);
  stream(tree.live.events, ({ runs, gone }) => {
    latest = { ...latest, ...Object.fromEntries(runs.map(({ key, version }) => [key, version])) };
    if (gone.length) say("A run of this page is gone.");
  }, say);
  byId("offline").hidden = true;
  connectHold();
  setInterval(async () => {
    const old = Object.keys(latest).some((key) => latest[key] !== versions[key]);
    if (!old || busy || Date.now() < due || held()) return;
    const [started, asked] = [Date.now(), latest];
    busy = true;
    try {
      await update();
      versions = asked;
    } catch (error) {
      say(`Not updated: ${error.message}.`);
    }
    // large runs take the server a while
    due = Date.now() + Math.max(1000, 5 * (Date.now() - started));
    busy = false;
  }, 200);
};
const live = () => (tree.live.events ? listen() : reload());
