"use strict";

const shown = 200; // deliveries
const rows = document.getElementById("rows");
const pause = document.getElementById("pause");
const result = document.getElementById("result");
const byDelivery = new Map();
let held = null; // attempts that wait while the list is paused

// The list: one row for each delivery, changed by each further attempt.

const stream = new EventSource("events");
stream.addEventListener("open", () => connection("live", "Live"));
stream.addEventListener("error", () => connection("wait", "Reconnecting"));
stream.addEventListener("reset", () => {
  byDelivery.clear();
  rows.replaceChildren();
  if (held) held = [];
  count();
});
stream.addEventListener("attempt", (event) => {
  const attempt = JSON.parse(event.data);
  if (held) {
    held.push(attempt);
    pause.textContent = `Resume, ${held.length} new`;
  } else {
    show(attempt);
  }
});

function show(attempt) {
  let row = byDelivery.get(attempt.delivery);
  if (!row) {
    row = document.getElementById("row").content.firstElementChild.cloneNode(true);
    row.dataset.new = "";
    row.querySelector(".event .id").textContent = attempt.event;
    row.querySelector(".type").textContent = attempt.type;
    row.querySelector(".delivery .id").textContent = attempt.delivery.slice(0, 8);
    row.querySelector(".delivery .id").title = attempt.delivery;
    row.querySelector(".tag").hidden = !attempt.replay;
    const button = row.querySelector("button");
    button.setAttribute("aria-label", `Replay ${attempt.event}, delivery ${attempt.delivery.slice(0, 8)}`);
    button.addEventListener("click", () => replay(row, button, attempt));
    byDelivery.set(attempt.delivery, row);
    rows.prepend(row);
    while (rows.children.length > shown) {
      rows.lastElementChild.remove();
    }
  }
  const at = new Date(attempt.time);
  row.querySelector("time").dateTime = attempt.time;
  row.querySelector("time").textContent = at.toLocaleTimeString([], { hour12: false });
  row.querySelector("time").title = at.toLocaleString();
  const badge = row.querySelector(".badge");
  badge.textContent = attempt.status === 0 ? "no answer" : attempt.status === 200 ? "200 OK" : String(attempt.status);
  badge.dataset.kind = attempt.status === 200 ? "good" : attempt.status === 0 ? "none" : "bad";
  row.querySelector(".attempts").textContent = attempt.attempts;
  count();
}

function count() {
  document.getElementById("count").textContent = rows.children.length;
  document.getElementById("empty").hidden = rows.children.length > 0;
}

function connection(state, text) {
  const element = document.getElementById("connection");
  element.dataset.state = state;
  element.textContent = text;
}

pause.addEventListener("click", () => {
  const waiting = held;
  held = waiting ? null : [];
  pause.setAttribute("aria-pressed", String(!waiting));
  pause.textContent = waiting ? "Pause" : "Resume";
  (waiting ?? []).forEach(show);
});

// The replay, and what it has changed.

let busy = false;

async function replay(row, button, attempt) {
  if (busy) return;
  busy = true;
  button.setAttribute("aria-disabled", "true");
  rows.querySelectorAll("[data-chosen]").forEach((other) => delete other.dataset.chosen);
  row.dataset.chosen = "";
  report("busy", paragraph(`Replaying ${attempt.event} …`));
  try {
    const response = await fetch(`deliveries/${encodeURIComponent(attempt.delivery)}/replay`, { method: "POST" });
    if (!response.ok) throw new Error(await response.text());
    const comparison = await response.json();
    report(comparison.changes.length === 0 ? "unchanged" : "changed", compared(comparison));
  } catch (error) {
    report("failed", paragraph(`The replay failed. ${error.message}`));
  } finally {
    busy = false;
    button.removeAttribute("aria-disabled");
  }
}

function report(state, content) {
  result.dataset.state = state;
  document.getElementById("result-body").replaceChildren(content);
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  result.scrollIntoView({ block: "nearest", behavior: still ? "auto" : "smooth" });
}

function compared(c) {
  const content = document.getElementById("comparison").content.cloneNode(true);
  const changes = c.changes.length;
  content.querySelector(".verdict strong").textContent =
    changes === 0 ? "Nothing changed" : `${changes} ${changes === 1 ? "row" : "rows"} changed`;
  content.querySelector(".verdict span").textContent = `${c.event} was delivered once more`;
  content.querySelector(".card").textContent = c.card;
  content.querySelector(".event").textContent = c.event;

  const table = (name) => c.tables.find((t) => t.table === name);
  const facts = content.querySelector(".facts");
  facts.append(
    fact(c.tables.every((t) => t.after.rows === t.before.rows), "No new row", "Another number of rows"),
    fact(c.tables.every((t) => t.after.newest === t.before.newest), "No updated timestamp", "An updated timestamp"),
    fact(table("emails").after.rows === table("emails").before.rows, "No second e-mail", "Another number of e-mails"),
  );

  for (const t of c.tables) {
    const row = content.querySelector("tbody").insertRow();
    const name = row.insertCell();
    name.className = "id";
    t.table.replace("watermill_", "").split(/(?<=_)/).forEach((part) => name.append(part, document.createElement("wbr")));
    name.title = t.table;
    summary(row, t.before, t.before);
    summary(row, t.after, t.before);
  }
  for (const change of c.changes) {
    content.querySelector(".changes").append(changed(change));
  }
  detail(content, "New delivery", c.delivery.slice(0, 8)).title = c.delivery;
  for (const o of c.outcomes) {
    detail(content, `Consumer ${o.consumer}`, o.outcome);
  }
  return content;
}

function fact(holds, text, otherwise) {
  const item = document.createElement("li");
  item.textContent = holds ? text : otherwise;
  if (!holds) item.dataset.broken = "";
  return item;
}

function summary(row, { rows, newest }, before) {
  const cell = row.insertCell();
  cell.className = "number";
  for (const [name, text, was] of [["rows", rows, before.rows], ["newest", newest, before.newest]]) {
    const line = document.createElement("span");
    line.className = name;
    line.textContent = name === "newest" ? newest.slice(11) || "–" : text;
    if (name === "newest") line.title = newest;
    if (text !== was) line.dataset.changed = "";
    cell.append(line);
  }
}

function changed(change) {
  const item = document.createElement("li");
  item.append(change.table);
  for (const [kind, sign, text] of [["gone", "−", change.before], ["new", "+", change.after]]) {
    if (text === "") continue;
    const block = document.createElement("pre");
    block.className = kind;
    block.textContent = `${sign} ${text}`;
    item.append(block);
  }
  return item;
}

function detail(content, name, text) {
  const term = document.createElement("dt");
  term.textContent = name;
  const description = document.createElement("dd");
  description.textContent = text;
  if (name === "New delivery") description.className = "id";
  content.querySelector(".details").append(term, description);
  return description;
}

function paragraph(text) {
  const p = document.createElement("p");
  p.textContent = text;
  return p;
}
