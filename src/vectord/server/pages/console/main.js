// Starts the page: theme, key, and the three sections.

import { key, setKey, whenAdmitted, whenRefused } from "./api.js";
import { copy, firstCall } from "./code.js";
import { find } from "./dom.js";
import { startLive } from "./live.js";
import { allowManaging, startModels } from "./models.js";
import { startPlayground } from "./playground.js";
import { startRequests } from "./requests.js";

const THEME_KEPT_AS = "vectord-theme";

startTheme();
startKey();
let models = [];
let failure = null;
let isFirst = true; // of the answers with figures
startPlayground((whenChanged) => startModels((list) => {
  models = list;
  showState();
  whenChanged(list);
}));
startLive((figures, error) => {
  failure = error;
  if (figures !== null) {
    allowManaging(figures.admin);
    welcome(figures);
  }
  showState();
});
startRequests();
find("first-copy").addEventListener("click", () => copy(find("first-call"), find("first-note")));

/** Of a server that has read no text yet: a call to copy, no empty charts, and the playground first as long as the page
 *  is open. */
function welcome({ tokens }) { // its requests include those of this page
  if (isFirst && tokens === 0) find("first").after(find("playground"));
  isFirst = false;
  find("first-call").textContent = firstCall();
  find("main").classList.toggle("silent", tokens === 0);
  find("first").hidden = tokens > 0 || !models.some(({ outputs }) => outputs.includes("dense"));
}

function startTheme() {
  const select = find("theme");
  select.value = localStorage.getItem(THEME_KEPT_AS) ?? "auto";
  const apply = () => {
    if (select.value === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = select.value;
    document.dispatchEvent(new Event("theme"));
  };
  select.addEventListener("change", () => {
    localStorage.setItem(THEME_KEPT_AS, select.value);
    apply();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", apply);
  apply();
}

function startKey() {
  const form = find("key-form");
  const show = (visible) => {
    form.hidden = !visible;
    find("key-button").setAttribute("aria-expanded", String(visible));
  };
  find("key-button").addEventListener("click", () => {
    show(form.hidden);
    if (!form.hidden) find("key").focus();
  });
  find("key-forget").addEventListener("click", () => setKey(null));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    show(false);
    setKey(find("key").value);
    find("key").value = "";
    find("key-button").focus();
  });
  whenAdmitted(() => find("key-why").textContent = "This server requires a key.");
  whenRefused(() => {
    if (!form.hidden) return;
    if (key()) find("key-why").textContent = "The server does not know this key.";
    show(true);
    find("key").focus();
  });
}

function showState() {
  const [state, words] = stateOf();
  find("main").classList.toggle("locked", failure?.status === 401); // only the form for the key is of use
  find("main").classList.toggle("unmeasured", failure?.status === 404); // the server collects no metrics
  const place = find("state");
  if (place.textContent === words) return;
  place.dataset.state = state;
  place.textContent = words;
}

function stateOf() {
  if (failure?.status === 0) return ["bad", "unreachable"];
  if (failure?.status === 401) return ["bad", "key required"];
  const answering = models.filter((model) => model.state === "ready" || model.state === "unloaded").length;
  if (models.length === 0) return ["waiting", "connecting"];
  if (answering === models.length) return ["ready", "ready"];
  if (models.some((model) => model.state === "loading")) return ["waiting", `loading, ${answering} of ${models.length} ready`];
  return ["bad", `${answering} of ${models.length} ready`];
}
