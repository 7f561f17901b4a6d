// Make elements, and copy texts.

const make = (tag, text = "", style = "") => {
  const element = document.createElement(tag);
  element.textContent = text;
  if (style) element.className = style;
  return element;
};

// The class of an outcome in the style sheet, and its word in the filter.
const styleOf = (outcome) => outcome.replaceAll(" ", "-");

const ESCAPES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };
const escaped = (text) => String(text).replace(/[&<>"']/g, (letter) => ESCAPES[letter]);

// A word of a command for a POSIX shell.
const quoted = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);

const COPIED = 900; // ms for which a button says so

async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    copyBySelection(text, button);
  }
  const label = button.dataset.label ?? button.textContent;
  button.dataset.label = label;
  button.textContent = "copied";
  setTimeout(() => {
    button.textContent = label;
  }, COPIED);
}

// A page from disk may not use the clipboard directly.
function copyBySelection(text, button) {
  const area = make("textarea", text);
  button.after(area); // inside an open dialog, where alone it can be selected
  area.select();
  document.execCommand("copy");
  area.remove();
  button.focus();
}

function copyButton(label, text) {
  const button = make("button", label, "copy");
  button.type = "button";
  button.dataset.text = text;
  return button;
}

// What a button of the class `copy` copies: a text, an address of this page, or the text below it.
function textToCopy(button) {
  if (button.dataset.text !== undefined) return button.dataset.text;
  if (button.dataset.link) return location.href.split("#")[0] + button.dataset.link;
  return button.closest(".copyable").querySelector("pre").textContent;
}
