/** Resolves to whether the page is cross-origin isolated, as threads need; stays pending while the page reloads. */
export const isolated: Promise<boolean>;
