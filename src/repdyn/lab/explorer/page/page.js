// Labels of the plots for screen readers, by their ids: gradio sets none.
const plots = {
  attention: "Attention weights of one head, a row for each token that attends, a column for each that it attends to.",
  similarity: "Cosine to the token's own input embedding across layers, a line for each checkpoint and state. " +
    "The tab Nearest tokens has the numbers.",
  rank: "Rank of the token's own row across layers, a line for each checkpoint and state. " +
    "The tab Nearest tokens has the numbers.",
};
// Arrow keys move from token to token: gradio gives each button of a radio group a name of its own, so that browsers do
// not treat them as one group.
document.addEventListener("keydown", (event) => {
  const chip = event.target.closest("#tokens input");
  const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  if (!chip || !step) return;
  const chips = [...document.querySelectorAll("#tokens input")];
  const next = chips[chips.indexOf(chip) + step];
  event.preventDefault();
  if (next) { next.focus(); next.click(); }
});
// a tab's plot is there from when the tab is opened
new MutationObserver(() => {
  for (const [id, name] of Object.entries(plots)) {
    const plot = document.getElementById(id);
    if (!plot || plot.getAttribute("aria-label") === name) continue;
    plot.setAttribute("role", "figure");
    plot.setAttribute("aria-label", name);
  }
}).observe(document, { childList: true, subtree: true });
