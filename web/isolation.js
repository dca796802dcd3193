/**
 * Cross-origin isolation, which threads need, on hosts that cannot set headers (GitHub Pages): import this module first,
 * and keep `isolation-worker.js` beside it, in the page's folder or above. The first visit reloads the page once.
 *
 * Where the host sets the headers itself, nothing happens. Then, and where there are no service workers, a page in a
 * foreign frame included, the page goes on as it is; `inpage` says that it computes on one thread.
 */

const RELOADED = "inpage-isolation-reloaded";

/** Whether the page is isolated. Stays pending while the page reloads. @returns {Promise<boolean>} */
async function isolate() {
  try {
    if (crossOriginIsolated) {
      sessionStorage.removeItem(RELOADED);
      return true;
    }
    if (!navigator.serviceWorker || sessionStorage.getItem(RELOADED)) return false;
    await navigator.serviceWorker.register(new URL("isolation-worker.js", import.meta.url));
    await navigator.serviceWorker.ready;
    sessionStorage.setItem(RELOADED, "yes"); // a page that is not isolated now would reload without end
  } catch (error) {
    if (!crossOriginIsolated) console.warn(`The page stays without cross-origin isolation: ${error}`);
    return crossOriginIsolated;
  }
  location.reload();
  return new Promise(() => {});
}

export const isolated = isolate();
