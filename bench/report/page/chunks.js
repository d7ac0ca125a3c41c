// Data of the page: deflated JSON in base64, unpacked on demand.

async function unpack(name) {
  const text = document.getElementById(`chunk-${name}`).textContent;
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}
