// The live view: the progress of the run, and a new page when there are new records.
function clock(seconds) {
  const whole = Math.round(seconds);
  return whole < 90 ? `${whole} s` : `${Math.floor(whole / 60)} min`;
}

function append(parent, text, kind = "p") {
  const made = document.createElement(kind);
  made.textContent = text;
  parent.append(made);
  return made;
}

const STATES = { running: "running", waiting: "waiting for a run", ended: "the run has ended", stopped: "the run was stopped" };

// Write only what has changed: screen readers announce the state and the trials done, and a log keeps its position.
function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
  element.hidden = text === "";
}

function showProgress(run) {
  const live = one("#live");
  live.hidden = false;
  live.dataset.state = run.state;
  const total = run.total ? ` of ${run.total}` : "";
  setText(one(".state", live), `${STATES[run.state] || run.state} · ${run.done}${total} trials`);
  setText(one(".left", live), run.state === "running" && run.left_s ? `· about ${clock(run.left_s)} left` : "");
  setText(one(".note", live), run.note || "");
  Object.assign(one("progress", live), { hidden: !run.total, max: run.total || 1, value: run.done });
  const running = run.running || [];
  for (const part of every(".trial", live)) if (!running.some((trial) => trial.trial_id === part.dataset.trial)) part.remove();
  for (const trial of running) showTrial(live, trial);
}

function showTrial(live, trial) {
  let part = every(".trial", live).find((known) => known.dataset.trial === trial.trial_id);
  if (!part) {
    part = append(live, "", "div");
    part.className = "trial";
    part.dataset.trial = trial.trial_id;
    append(part, "");
    append(part, "", "pre");
  }
  const step = trial.step ? `, step ${trial.step}${trial.steps ? ` of ${trial.steps}` : ""}` : "";
  const log = one("pre", part);
  const atEnd = log.scrollTop + log.clientHeight >= log.scrollHeight - 4;
  setText(one("p", part), `${trial.title}: ${trial.phase || "starting"}, ${clock(trial.seconds || 0)}${step}`);
  setText(log, (trial.log || []).join("\n"));
  if (atEnd) log.scrollTop = log.scrollHeight;
}

// What is selected and opened is kept across pages, by the names of its workload, its chart and its element.
function nameOf(element) {
  const within = (selector, name) => element.closest(selector)?.dataset[name];
  return JSON.stringify([within("[data-workload]", "workload"), within("[data-name]", "name"), element.dataset.key || element.id]);
}

function remember() {
  const named = (selector) => new Map(every(selector).map((element) => [nameOf(element), element]));
  return {
    opened: named("details[data-key][open], .unfold[aria-expanded=true], input[type=radio]:checked, .log input:not(:checked), .board[data-all]"),
    picked: named("select.pick"),
    sorted: named("th[aria-sort]"),
    moved: new Map(every(".scroll").map((box) => [nameOf(box), box.scrollLeft])),
    drawn: new Map(every("figure.chart").map((figure) => [nameOf(figure), one(".canvas", figure).offsetHeight])),
    focused: document.activeElement === document.body ? "" : nameOf(document.activeElement),
    at: scrollY,
  };
}

function recall(known) {
  for (const element of every("details[data-key], .unfold, .choices input, .log input, .board")) {
    if (!known.opened.has(nameOf(element))) continue;
    if (element.matches("details")) element.open = true;
    else if (element.matches("input")) element.checked = element.type === "radio";
    else if (element.matches(".board")) element.dataset.all = "";
    else unfold(element, true);
  }
  for (const select of every("select.pick")) {
    const before = known.picked.get(nameOf(select))?.value;
    if ([...select.options].some((option) => option.value === before)) select.value = before;
  }
  for (const head of every(".sortable th[data-key]")) {
    const before = known.sorted.get(nameOf(head))?.getAttribute("aria-sort");
    if (before) sort(head.closest("table"), head.cellIndex, before === "descending");
  }
  for (const box of every(".scroll")) box.scrollLeft = known.moved.get(nameOf(box)) || 0;
  for (const figure of every("figure.chart")) one(".canvas", figure).style.minHeight = known.drawn.has(nameOf(figure)) ? `${known.drawn.get(nameOf(figure))}px` : "";
}

async function renew() {
  const response = await fetch(location.href, { cache: "no-store" }).catch(() => null); // the live view may have ended
  if (!response?.ok) return;
  const fresh = new DOMParser().parseFromString(await response.text(), "text/html");
  const [live, known] = [one("#live"), remember()];
  one("#page").replaceWith(document.adoptNode(one("#page", fresh)));
  one("#live").replaceWith(live);
  document.title = fresh.title;
  for (const view of views.values()) view.finalize();
  views.clear();
  recall(known);
  start();
  if (known.focused) every("button, input, select, summary, .scroll, details[data-key]").find((element) => nameOf(element) === known.focused)?.focus({ preventScroll: true });
  scrollTo(0, known.at);
}

function listen() {
  const source = new EventSource(`events?${new URLSearchParams([...new URLSearchParams(location.search), ["seen", document.documentElement.dataset.live]])}`);
  source.addEventListener("progress", (event) => showProgress(JSON.parse(event.data)));
  let renewed = Promise.resolve(); // in order, so that the newest page stays
  source.addEventListener("records", () => { renewed = renewed.then(renew); });
}

listen();
