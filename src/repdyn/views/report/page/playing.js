// Going through the steps.
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
