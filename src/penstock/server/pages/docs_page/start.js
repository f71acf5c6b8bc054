// Fetch openapi.json, ask for an API key where the server wants one, and have Swagger UI show the document.
//
// The key is kept in the memory of this page only: no storage, no cookie and no address has it.
"use strict";

const form = document.getElementById("ask");
const field = document.getElementById("key");
const failure = document.getElementById("failure");

// A header has bytes, and the server compares those of UTF-8.
function bytes(text) {
  return String.fromCharCode(...new TextEncoder().encode(text.trim()));
}

function fail(words, again) {
  failure.querySelector("p").textContent = words;
  failure.querySelector("button").hidden = !again;
  failure.querySelector("button").onclick = again;
  failure.hidden = false;
}

async function load(key) {
  failure.hidden = true;
  let answer, api;
  try {
    answer = await fetch("openapi.json", { headers: key ? { "X-API-Key": key } : {}, cache: "no-store" });
    if (answer.ok) api = await answer.json();
  } catch (error) {
    fail(`openapi.json could not be fetched: ${error.message}`, () => load(key));
    return;
  }
  if (answer.ok) {
    show(api, answer.url, key);
  } else if (answer.status === 401) {
    form.hidden = false;
    field.select();
    if (key) fail("The server does not accept this key.", null);
  } else {
    fail(`openapi.json could not be fetched: ${answer.status} ${answer.statusText}`, () => load(key));
  }
}

function show(api, address, key) {
  form.remove();
  document.title = api.info.title;
  // The document's own server is ".", which is right wherever a proxy or an app mounts it.  People see where that is.
  const mount = new URL(".", address).pathname;
  api.servers = [{ url: mount === "/" ? "/" : mount.slice(0, -1) }];
  // Every call gets the key below.  Swagger UI would ask for it once more, and let people take it back to no effect.
  delete api.security;
  delete api.components.securitySchemes;
  SwaggerUIBundle({
    spec: api,
    dom_id: "#docs",
    deepLinking: true,
    validatorUrl: null,  // else the page would send the document to a public checker, to draw a badge
    requestInterceptor: (request) => {
      if (key) request.headers["X-API-Key"] = key;
      return request;
    },
  });
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  load(bytes(field.value));
});
load("");
