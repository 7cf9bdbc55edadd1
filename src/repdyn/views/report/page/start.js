// The first drawing.
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
