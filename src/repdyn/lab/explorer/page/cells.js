// Reports the layer and the token of the cell that is clicked.
element.addEventListener("click", (event) => {
  const cell = event.target.closest("button[data-layer]");
  if (!cell) return;
  element.querySelectorAll("button[aria-pressed=true]").forEach((other) => other.setAttribute("aria-pressed", "false"));
  cell.setAttribute("aria-pressed", "true");
  trigger("click", { layer: Number(cell.dataset.layer), place: Number(cell.dataset.place) });
});
