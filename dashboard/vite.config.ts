/** How the dashboard is built: into the Python package, with names that stay the same. */

import { fileURLToPath } from "node:url";
import { defineConfig } from "vite";

export default defineConfig({
  base: "/dashboard/",
  resolve: {
    alias: {
      sandkasten: fileURLToPath(new URL("../sdks/typescript/src/index.ts", import.meta.url)),
    },
  },
  build: {
    outDir: fileURLToPath(new URL("../server/src/sandkasten_server/_dashboard", import.meta.url)),
    emptyOutDir: true,
    target: "es2022",
    modulePreload: { polyfill: false },
    // The CSP allows no data: addresses.
    assetsInlineLimit: 0,
    rollupOptions: {
      output: {
        entryFileNames: "app.js",
        chunkFileNames: "[name].js",
        assetFileNames: "[name][extname]",
      },
    },
  },
});
