// What node programs use: threads, child processes, files that are watched, interfaces.
const { Worker, isMainThread, parentPort, workerData } = require("worker_threads");
const { execFileSync, fork } = require("child_process");
const fs = require("fs");
const os = require("os");

if (!isMainThread) {
  parentPort.postMessage(workerData * 2);
} else if (process.argv[2] === "child") {
  process.send("forked");
  process.disconnect();
} else {
  console.log("interfaces", typeof os.networkInterfaces());
  console.log("exec", execFileSync("echo", ["child"]).toString().trim());
  new Worker(__filename, { workerData: 21 }).on("message", (n) => {
    console.log("worker", n);
    fork(__filename, ["child"]).on("message", (text) => {
      console.log("fork", text);
      const watcher = fs.watch(".", () => {
        watcher.close();
        console.log("watch", fs.readFileSync("seen", "utf8"));
      });
      fs.writeFileSync("seen.new", "file");
      fs.renameSync("seen.new", "seen");
    });
  });
}
