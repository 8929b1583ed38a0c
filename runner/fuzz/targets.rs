//! How the targets of a program run: under libFuzzer (`make fuzz`), and on the stored inputs as a test.

#[cfg(test)]
use std::path::PathBuf;

/// Define the entry of libFuzzer, which runs the target that `SANDKASTEN_FUZZ_TARGET` names, and a test
/// for each target, which runs it on its stored inputs.
macro_rules! targets {
    ($($target:ident),+) => {
        #[cfg(fuzzing)]
        libfuzzer_sys::fuzz_target!(|data: &[u8]| {
            match std::env::var("SANDKASTEN_FUZZ_TARGET").as_deref() {
                $(Ok(stringify!($target)) => $target(data),)+
                other => panic!("SANDKASTEN_FUZZ_TARGET is {other:?}"),
            }
        });

        #[cfg(test)]
        mod stored_inputs {
            $(#[test]
            fn $target() {
                for (path, data) in super::targets::inputs(stringify!($target)) {
                    // A test that fails shows what it printed.
                    println!("{}", path.display());
                    super::$target(&data);
                }
            })+
        }
    };
}
pub(crate) use targets;

/// Return the stored inputs of a target.
#[cfg(test)]
pub fn inputs(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let corpus = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
    let files = std::fs::read_dir(corpus.join(target)).unwrap();
    let paths = files.map(|file| file.unwrap().path());
    let inputs: Vec<_> = paths
        .map(|path| (path.clone(), std::fs::read(path).unwrap()))
        .collect();
    assert!(!inputs.is_empty());
    inputs
}
