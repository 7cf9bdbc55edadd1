// Events of a server, while the page is visible: a browser opens few connections to one host.
const stream = (address, take, say) => {
  let events = null;
  const follow = () => {
    events?.close();
    if (document.hidden) return;
    events = new EventSource(address);
    events.addEventListener("runs", (event) => { say("Live."); take(JSON.parse(event.data)); });
    events.onerror = () => say(events.readyState === EventSource.CLOSED
      ? "Not connected: the server needs another token; open the address it printed."
      : "Not connected to the server; trying again.");
  };
  document.addEventListener("visibilitychange", follow);
  follow();
};
