// The playground: wires the page to the gateway.

import { Answer, plural } from "./answer.js";
import { Conversation } from "./conversation.js";
import { element } from "./element.js";
import { chat, modelNames, Refused } from "./gateway.js";
import { Settings } from "./settings.js";
import { AnswerTurn, userTurn } from "./turns.js";

const byId = (id) => document.getElementById(id);
const [log, welcome, notice, status] = ["log", "welcome", "notice", "status"].map(byId);
const [model, message, send, stop] = ["model", "message", "send", "stop"].map(byId);
const [toggle, sheet] = ["toggle", "settings"].map(byId);

const conversation = new Conversation();
const settings = new Settings(byId("wishes"), listModels);
let views = []; // of the conversation's turns: an element, or an AnswerTurn
let running = null; // the AbortController of the answer under way
let isFollowing = true; // the end of the log stays in sight

// Saying things

function submit() {
  const text = message.value.trim();
  if (!text || running) return;
  const { last } = conversation;
  if (last?.awaitsResults) {
    tell("The model waits for the results of its calls.");
    return views.at(-1).focusResult();
  }
  if (!areWishesFine()) return;
  message.value = "";
  fitMessage();
  say(text);
}

function say(text) {
  conversation.say(text);
  const turn = userTurn(text, (other) => areWishesFine() && edit(other));
  views.push(turn);
  log.append(turn);
  ask();
}

function edit(text) {
  if (running) return;
  conversation.rewind();
  trim();
  say(text);
}

function regenerate() {
  if (running || !areWishesFine()) return;
  conversation.takeBack();
  trim();
  ask();
}

function clear() {
  running?.abort();
  running = null;
  conversation.clear();
  trim();
  tell("");
  message.focus();
}

/** Remove what is shown of turns that are no more. */
function trim() {
  for (const view of views.splice(conversation.turns.length)) (view.node ?? view).remove();
  refresh();
}

async function ask() {
  tell("");
  const messages = conversation.messages(settings.system);
  const request = { model: model.value, messages, ...settings.wishes() };
  const answer = new Answer(performance.now());
  const turn = new AnswerTurn(answer, regenerate, ask);
  conversation.say(answer);
  views.push(turn);
  log.append(turn.node);
  isFollowing = true;
  focusMessage();
  const aborting = (running = new AbortController());
  refresh();
  await listen(request, answer, turn, aborting.signal);
  if (running === aborting) running = null;
  answer.isOver = true;
  turn.finish();
  refresh();
  status.textContent = summary(answer);
  if (answer.error?.status === 401) askKey();
  else if (answer.awaitsResults) turn.focusResult();
}

/** Read the answer to its end, drawing at most once a frame. */
async function listen(request, answer, turn, signal) {
  let frame = 0;
  const draw = () => {
    frame = 0;
    turn.grow();
    follow();
  };
  try {
    for await (const chunk of chat(request, settings.key, signal)) {
      answer.take(chunk, performance.now());
      frame ||= requestAnimationFrame(draw);
    }
  } catch (error) {
    if (error.name === "AbortError") answer.isStopped = true;
    else if (error instanceof Refused) answer.error = error;
    else throw error;
  } finally {
    cancelAnimationFrame(frame);
  }
}

function summary(answer) {
  if (answer.error) return "";
  if (answer.isStopped) return "Answer stopped";
  return `Answer complete, ${plural(answer.usage?.completion_tokens ?? 0, "token")}`;
}

// The state of the page

function refresh() {
  const isBusy = running !== null;
  welcome.hidden = views.length > 0;
  send.hidden = isBusy;
  stop.hidden = !isBusy;
  log.ariaBusy = String(isBusy);
  if (isBusy) status.textContent = "Answering";
  const lasts = { edit: views.findLast((view) => !view.node), again: views.at(-1)?.node };
  for (const button of log.querySelectorAll("[data-last]")) {
    button.hidden = isBusy || !lasts[button.dataset.last]?.contains(button);
  }
  follow();
}

function follow() {
  if (isFollowing) log.scrollTop = log.scrollHeight;
}

function tell(text) {
  notice.textContent = text;
  notice.hidden = !text;
}

function areWishesFine() {
  if (!model.value) {
    tell("There is no model to talk to yet. Trying again…");
    listModels();
    return false;
  }
  try {
    settings.wishes();
    return true;
  } catch (error) {
    tell(error.message);
    showSettings(true);
    error.field.focus();
    return false;
  }
}

async function listModels() {
  try {
    const names = await modelNames(settings.key);
    const chosen = model.value;
    model.replaceChildren(...names.map((name) => element("option", { value: name }, name)));
    if (names.includes(chosen)) model.value = chosen;
    tell(names.length ? "" : "This key may use no model.");
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    if (error.status === 401) return askKey();
    tell(error.message);
  }
}

function askKey() {
  const { key } = byId("wishes").elements;
  tell(key.value ? "The gateway does not know this API key." : "This gateway asks for an API key.");
  showSettings(true);
  key.focus();
}

function showSettings(isShown) {
  sheet.classList.toggle("shown", isShown);
  toggle.setAttribute("aria-expanded", String(isShown));
}

function hideSettings() {
  showSettings(false);
  toggle.focus();
}

/** Ready for the next message; but no keyboard shall cover a phone's screen. */
function focusMessage() {
  if (matchMedia("(pointer: fine)").matches) message.focus();
}

function fitMessage() {
  message.style.height = "auto";
  message.style.height = `${message.scrollHeight}px`;
}

// What the user does

byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  submit();
});
message.addEventListener("input", fitMessage);
message.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  submit();
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  if (running) running.abort();
  else if (sheet.classList.contains("shown")) hideSettings();
});
log.addEventListener("scroll", () => {
  isFollowing = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
});
stop.addEventListener("click", () => {
  running?.abort();
  focusMessage();
});
byId("clear").addEventListener("click", clear);
byId("defaults").addEventListener("click", () => settings.reset());
byId("close").addEventListener("click", hideSettings);
toggle.addEventListener("click", () => {
  showSettings(true);
  byId("close").focus();
});

listModels();
