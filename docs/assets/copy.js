/* The copy button of a console block copies its commands, without prompts and output: the theme copies `data-copy`. */
for (const block of document.querySelectorAll(".language-console")) {
  const commands = [];
  let quoted = false; // a command goes on while a quotation is open
  for (const line of block.textContent.split("\n")) {
    if (quoted || line.startsWith("$ ")) {
      commands.push(quoted ? line : line.slice(2));
      quoted = quoted !== (line.split("'").length % 2 === 0);
    }
  }
  block.dataset.copy = commands.join("\n");
}
