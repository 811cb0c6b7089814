//! A real control plane, started and stopped by its own supervisor (`tests/controlplane`).

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail, ensure};
use serde::Deserialize;
use serde_json::Value;

use super::process::tail;

/// How long the supervisor may take to stop everything before it is killed.
const STOP: Duration = Duration::from_secs(30);

/// The folder with the programs `controlplane`, `kwok` and `kubectl`.
#[derive(Debug, Clone)]
pub struct Programs(PathBuf);

/// A running control plane; dropping it takes it down and removes its folder.
#[derive(Debug)]
pub struct ControlPlane {
    programs: Programs,
    ready: Ready,
    child: Child,
    /// The supervisor ends when this closes, also when we are killed.
    stdin: Option<ChildStdin>,
}

/// The line that the supervisor prints when all is up.
#[derive(Debug, Clone, Deserialize)]
struct Ready {
    dir: PathBuf,
    kubeconfig: PathBuf,
    socket: PathBuf,
    audit: PathBuf,
    ports: std::collections::BTreeMap<String, u16>,
}

// === impl Programs ===

impl Programs {
    /// Builds the programs unless they are built: six minutes the first time, then at once. Its
    /// progress goes to our stderr.
    pub fn ensure() -> anyhow::Result<Self> {
        Self::ensure_with(Command::new(script()))
    }

    fn ensure_with(mut command: Command) -> anyhow::Result<Self> {
        let out = command.stderr(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = out.context("failed to run tests/controlplane/ensure: it needs bash")?;
        // Progress is passed on line by line, and kept for the failure's text.
        let mut last = Vec::new();
        if let Some(stderr) = child.stderr.take() {
            for line in BufReader::new(stderr).lines() {
                let line = line?;
                show(&line);
                last.push(line);
            }
        }
        let output = child.wait_with_output()?;
        if !output.status.success() {
            let from = last.len().saturating_sub(20);
            bail!("the control plane's programs could not be built:\n{}", last[from..].join("\n"));
        }
        let path = PathBuf::from(String::from_utf8(output.stdout)?.trim());
        ensure!(path.join("controlplane").exists(), "{} has no controlplane program", path.display());
        Ok(Self(path))
    }

    /// The kubectl of the control plane's own release.
    pub fn kubectl(&self) -> PathBuf {
        self.0.join("kubectl")
    }
}

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../controlplane/ensure")
}

#[expect(clippy::print_stderr, reason = "a build of minutes shows its progress")]
fn show(line: &str) {
    eprintln!("{line}");
}

// === impl ControlPlane ===

impl ControlPlane {
    /// Brings one up below `parent`, with all parts ready: about 3 s.
    pub fn start(programs: &Programs, parent: &Path) -> anyhow::Result<Self> {
        // Short, because the path of a unix socket may have 107 bytes; and not made by us, because
        // the supervisor removes what it made.
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let dir = parent.join(format!("cp{}", STARTED.fetch_add(1, Ordering::SeqCst)));
        let log = parent.join(format!("{}.log", dir.file_name().unwrap_or_default().display()));
        let mut child = Command::new(programs.0.join("controlplane"))
            .arg("up")
            .arg("--dir")
            .arg(&dir)
            .args(["--exit-on-stdin-eof", "--rm"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(&log)?)
            .spawn()
            .context("failed to start the control plane's supervisor")?;
        let stdin = child.stdin.take();
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        let ready = serde_json::from_str(&line)
            .map_err(|error| anyhow!("the control plane did not come up ({error}):\n{}", tail(&log, 30)));
        match ready {
            Ok(ready) => Ok(Self { programs: programs.clone(), ready, child, stdin }),
            Err(error) => {
                drop(stdin);
                child.kill()?;
                child.wait()?;
                Err(error)
            }
        }
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig(&self) -> &Path {
        &self.ready.kubeconfig
    }

    /// The API server's audit log, a JSON object per line.
    pub fn audit(&self) -> &Path {
        &self.ready.audit
    }

    /// Its programs.
    pub fn programs(&self) -> &Programs {
        &self.programs
    }

    /// The ports that its parts listen on.
    pub fn ports(&self) -> Vec<u16> {
        self.ready.ports.values().copied().collect()
    }

    /// Does `start`, `stop`, `kill`, `restart`, `pause` or `resume` with a part, for example
    /// `kube-apiserver`, and returns when it is done.
    pub fn part(&self, verb: &str, part: &str) -> anyhow::Result<()> {
        let output = Command::new(self.programs.0.join("controlplane"))
            .arg(verb)
            .arg("--dir")
            .arg(&self.ready.dir)
            .arg(part)
            .output()?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success(),
            "failed to {verb} {part} ({}): {errors}",
            self.ready.socket.display()
        );
        Ok(())
    }

    /// The requests in the audit log that `wanted` takes.
    pub fn audited(&self, wanted: impl Fn(&Value) -> bool) -> anyhow::Result<Vec<Value>> {
        let text = std::fs::read_to_string(&self.ready.audit)?;
        Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).filter(wanted).collect())
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let (done, waited) = std::sync::mpsc::channel::<()>();
        let id = self.child.id();
        // A drop cannot be async: a thread ends the wait if the supervisor hangs.
        let guard = std::thread::spawn(move || {
            if waited.recv_timeout(STOP) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                tracing::error!(pid = id, "the control plane's supervisor hangs, it is killed");
                let killed = Command::new("sh").args(["-c", "kill -s KILL \"$0\"", &id.to_string()]).status();
                tracing::error!(?killed, "killed");
            }
        });
        if let Err(error) = self.child.wait() {
            tracing::error!(%error, "failed to wait for the control plane's supervisor");
        }
        drop(done);
        if guard.join().is_err() {
            tracing::error!("the thread that watches the supervisor's end panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who has no Go learns what to do, not that something returned 1.
    #[test]
    fn without_go_the_remedy_is_named() {
        let dir = tempfile::tempdir().unwrap();
        // A PATH with everything the script uses but Go.
        let bin = dir.path().join("bin");
        std::fs::create_dir(&bin).unwrap();
        for tool in
            ["bash", "env", "find", "sort", "sha256sum", "cut", "dirname", "sed", "touch", "mkdir", "cat"]
        {
            let path =
                ["/usr/bin", "/bin"].iter().map(|dir| Path::new(dir).join(tool)).find(|path| path.exists());
            std::os::unix::fs::symlink(path.unwrap(), bin.join(tool)).unwrap();
        }
        let mut command = Command::new(bin.join("bash"));
        command.arg(script()).env("PATH", &bin).env("REEVE_CACHE", dir.path().join("cache"));
        let error = Programs::ensure_with(command).unwrap_err().to_string();
        assert!(error.contains("Go is not installed"), "{error}");
        assert!(error.contains("remedy: install Go 1."), "{error}");
    }
}
