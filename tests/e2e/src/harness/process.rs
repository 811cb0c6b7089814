//! Processes that end with their test, however the test ends.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, ensure};

use super::wait::{Fatal, eventually};

/// A process whose output goes into one file.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
    ended: Option<ExitStatus>,
}

/// What a process takes of the machine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Usage {
    /// Resident memory in KiB.
    pub rss_kib: u64,
    /// The most resident memory it ever had, in KiB.
    pub peak_rss_kib: u64,
    /// Processor time, user and system.
    pub cpu: Duration,
}

// === impl Process ===

impl Process {
    /// Starts `program` with its output in `log`. The kernel kills it when the thread that started
    /// it ends without having dropped it (Linux with util-linux; elsewhere only the drop does).
    pub fn start(name: &str, mut command: Command, log: &Path) -> anyhow::Result<Self> {
        let output = File::create(log).with_context(|| format!("failed to create {}", log.display()))?;
        let errors = output.try_clone()?;
        let setpriv = Path::new("/usr/bin/setpriv");
        if setpriv.exists() {
            let mut wrapped = Command::new(setpriv);
            wrapped.args(["--pdeathsig", "KILL", "--"]).arg(command.get_program()).args(command.get_args());
            for (key, value) in command.get_envs() {
                match value {
                    Some(value) => wrapped.env(key, value),
                    None => wrapped.env_remove(key),
                };
            }
            if let Some(dir) = command.get_current_dir() {
                wrapped.current_dir(dir);
            }
            command = wrapped;
        }
        let child = command
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .spawn()
            .with_context(|| format!("failed to start {name} ({})", command.get_program().display()))?;
        Ok(Self { name: name.to_owned(), child, log: log.to_owned(), ended: None })
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The file with its output.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// How it ended, if it did.
    pub fn ended(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait()?;
        }
        Ok(self.ended)
    }

    /// An error if it ended, which ends every wait.
    pub fn alive(&mut self) -> anyhow::Result<()> {
        match self.ended()? {
            None => Ok(()),
            Some(status) => {
                Err(Fatal::error(format!("{} ended with {status}:\n{}", self.name, tail(&self.log, 30))))
            }
        }
    }

    /// Sends a signal by its name, for example `TERM`.
    pub fn signal(&mut self, signal: &str) -> anyhow::Result<()> {
        ensure!(self.ended()?.is_none(), "{} has ended already", self.name);
        let id = self.child.id().to_string();
        let status = Command::new("sh").args(["-c", "kill -s \"$0\" \"$1\"", signal, &id]).status()?;
        ensure!(status.success(), "failed to send {signal} to {}", self.name);
        Ok(())
    }

    /// Waits for its end.
    pub async fn wait(&mut self, within: Duration) -> anyhow::Result<ExitStatus> {
        let what = format!("{} ends", self.name);
        let log = self.log.clone();
        eventually(&what, within, async || {
            self.ended()?.with_context(|| format!("it runs; its last lines:\n{}", tail(&log, 10)))
        })
        .await
    }

    /// Ends it at once and waits until it is gone.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        if self.ended()?.is_none() {
            self.child.kill()?;
            self.ended = Some(self.child.wait()?);
        }
        Ok(())
    }

    /// What it takes of the machine now.
    pub fn usage(&self) -> anyhow::Result<Usage> {
        usage_of(self.child.id())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Err(error) = self.kill() {
            tracing::error!(%error, name = self.name, "failed to end a process");
        }
    }
}

/// The last lines of a file, for messages.
pub fn tail(path: &Path, lines: usize) -> String {
    match std::fs::read_to_string(path) {
        Err(error) => format!("({} cannot be read: {error})", path.display()),
        Ok(text) => {
            let all: Vec<&str> = text.lines().collect();
            all[all.len().saturating_sub(lines)..].join("\n")
        }
    }
}

fn usage_of(pid: u32) -> anyhow::Result<Usage> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))
        .with_context(|| format!("process {pid} is gone, or this is no Linux"))?;
    let kib = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
    };
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // After the name in parentheses: state is field 3, utime 14 and stime 15 (proc(5)).
    let fields: Vec<&str> = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
    let ticks = |at: usize| fields.get(at - 3).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    // Linux counts in hundredths of a second for user space on every platform.
    let cpu = Duration::from_millis(10 * (ticks(14) + ticks(15)));
    Ok(Usage { rss_kib: kib("VmRSS:"), peak_rss_kib: kib("VmHWM:"), cpu })
}

/// The ids and names of this process's children.
pub fn children() -> anyhow::Result<Vec<(u32, String)>> {
    let own = std::process::id().to_string();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        // A process may end while we look.
        let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { continue };
        let Some((head, rest)) = stat.rsplit_once(')') else { continue };
        if rest.split_whitespace().nth(1) == Some(own.as_str()) {
            found.push((pid, head.split_once('(').map_or("", |(_, name)| name).to_owned()));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_process_is_measured_signalled_and_ended() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let mut command = Command::new("sh");
        command.args(["-c", "echo up; while :; do sleep 1; done"]);
        let mut process = Process::start("shell", command, &log).unwrap();
        eventually("it says up", Duration::from_secs(10), async || {
            ensure!(tail(&log, 1) == "up", "{}", tail(&log, 5));
            Ok(())
        })
        .await
        .unwrap();
        process.alive().unwrap();
        assert!(process.usage().unwrap().rss_kib > 100);
        assert!(children().unwrap().iter().any(|(pid, _)| *pid == process.id()));
        process.signal("TERM").unwrap();
        assert!(!process.wait(Duration::from_secs(10)).await.unwrap().success());
        assert!(process.alive().unwrap_err().to_string().contains("shell ended with"));
        assert!(process.signal("TERM").is_err());
    }

    #[test]
    fn dropping_ends_it() {
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new("sleep");
        command.arg("600");
        let process = Process::start("sleep", command, &dir.path().join("log")).unwrap();
        let id = process.id();
        drop(process);
        assert!(!Path::new(&format!("/proc/{id}")).exists());
    }
}
