// The part that the scripts of the clients for Node share: the run, which prints a line per check and a count.

// Runs the checks by name, and ends the process with 1 if one failed.
export async function run(checks) {
  let failed = 0;
  for (const [name, check] of Object.entries(checks)) {
    try {
      await check();
      console.log("ok    ", name);
    } catch (error) {
      failed += 1;
      console.log("FAILED", name);
      console.error(error);
    }
  }
  console.log(`${Object.keys(checks).length - failed} passed, ${failed} failed`);
  process.exit(failed ? 1 : 0);
}
