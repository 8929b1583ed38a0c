//! The shells that images bring, each with a runner.

use super::{serial, Runner};

pub const SHELLS: [&str; 3] = ["/bin/bash", "/bin/dash", "busybox"];

/// Return a runner with the given shell; busybox is its applet, under the name it has in an image.
pub fn with_shell(shell: &str) -> Runner {
    if shell != "busybox" {
        return Runner::with(&["--shell", shell]);
    }
    let link = std::env::temp_dir().join(format!("sk-sh-{}-{}", std::process::id(), serial()));
    std::fs::create_dir(&link).unwrap();
    std::os::unix::fs::symlink("/bin/busybox", link.join("sh")).unwrap();
    assert!(
        std::path::Path::new("/bin/busybox").exists(),
        "busybox-static must be installed"
    );
    let mut runner = Runner::with(&["--shell", link.join("sh").to_str().unwrap()]);
    runner.also_remove = Some(link);
    runner
}
