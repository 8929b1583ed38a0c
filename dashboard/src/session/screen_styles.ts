/**
 * Styles of xterm.js under a policy without inline styles.
 *
 * It writes its colours and sizes into `<style>` elements, which the policy blocks. Style sheets that
 * a script makes are allowed, so the text of such an element goes into one. To be removed when
 * xterm.js uses `adoptedStyleSheets` itself.
 */

let patched = false;

export function useAllowedStyles(): void {
  if (patched) {
    return;
  }
  patched = true;
  const make = document.createElement.bind(document);
  document.createElement = ((name: string, options?: ElementCreationOptions) => {
    return name === "style" ? adopted(make("template")) : make(name, options);
  }) as typeof document.createElement;
}

/** Return the element with a text that is a style sheet of the document. */
function adopted(element: HTMLElement): HTMLElement {
  const sheet = new CSSStyleSheet();
  let text = "";
  Object.defineProperty(element, "textContent", {
    get: () => text,
    set: (value: string) => {
      text = value;
      sheet.replaceSync(value);
      if (!document.adoptedStyleSheets.includes(sheet)) {
        document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
      }
    },
  });
  const remove = element.remove.bind(element);
  element.remove = () => {
    document.adoptedStyleSheets = document.adoptedStyleSheets.filter((one) => one !== sheet);
    remove();
  };
  return element;
}
