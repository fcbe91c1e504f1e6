const dark = matchMedia("(prefers-color-scheme: dark)");
function applyTheme() {
  const chosen = localStorage.getItem("vectord-theme") ?? "auto"; // as chosen in the console
  const isDark = chosen === "auto" ? dark.matches : chosen === "dark";
  document.documentElement.className = isDark ? "dark-mode" : "light";
  document.documentElement.style.colorScheme = isDark ? "dark" : "light";
}
dark.addEventListener("change", applyTheme);
applyTheme();

const ui = SwaggerUIBundle({
  url: "/docs/openapi.json",
  dom_id: "#swagger-ui",
  deepLinking: true,
  docExpansion: "none",
  defaultModelsExpandDepth: -1,
  defaultModelExpandDepth: 2,
  tryItOutEnabled: true,
  validatorUrl: null, // the default is a public service, which would receive a request for every page view
  onComplete() {
    const { tags } = ui.specSelectors.specJson().toJS();
    for (const tag of tags) if (tag["x-open"]) ui.layoutActions.show(["operations-tag", tag.name], true);
  },
});
