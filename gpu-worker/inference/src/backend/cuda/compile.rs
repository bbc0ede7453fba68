//! From the kernels' text to what the device loads: NVRTC makes cubins, which are kept between starts.
//!
//! A cubin is named by a hash of all that it was made of, so that a stale one is never found.
#![expect(unsafe_code, reason = "calls of NVRTC and of the loader")]

use std::ffi::{CStr, CString};
use std::fmt::Write as _;
use std::hash::Hasher as _;
use std::path::{Path, PathBuf};

use cudarc::nvrtc::{result, sys};
use siphasher::sip128::{Hasher128 as _, SipHasher13};

use super::DeviceUnavailable;

/// Text that several kernels include.
static HEADERS: [(&str, &str); 6] = [
    ("prims.cuh", include_str!("../../../kernels/prims.cuh")),
    ("args.cuh", include_str!("../../../kernels/args.cuh")),
    ("gemm.cuh", include_str!("../../../kernels/gemm.cuh")),
    ("attend.cuh", include_str!("../../../kernels/attend.cuh")),
    ("grouped.cuh", include_str!("../../../kernels/grouped.cuh")),
    ("latent.cuh", include_str!("../../../kernels/latent.cuh")),
];

/// A file of kernels.
#[derive(Debug, Clone, Copy)]
pub(super) struct Module {
    /// Its name without the suffix.
    pub(super) name: &'static str,
    /// Its text.
    text: &'static str,
    /// What it exports.
    pub(super) kernels: &'static [&'static str],
}

macro_rules! module {
    ($name:literal, $($kernel:literal),+) => {
        Module {
            name: $name,
            text: include_str!(concat!("../../../kernels/", $name, ".cu")),
            kernels: &[$($kernel),+],
        }
    };
}

/// All files of kernels.
pub(super) static MODULES: [Module; 16] = [
    module!("step", "reset_slots", "resolve_tokens"),
    module!("embed", "embed"),
    module!("norm", "norm_rows", "quantize_rows"),
    module!(
        "gemm_bf16",
        "gemm_bf16_m16",
        "gemm_bf16_m64",
        "gemm_bf16_m128",
        "gemm_experts_bf16"
    ),
    module!(
        "gemm_s8",
        "gemm_s8_m16",
        "gemm_s8_m64",
        "gemm_s8_m128",
        "gemm_experts_s8"
    ),
    module!("combine", "combine_experts"),
    module!("rope", "rope_store"),
    module!(
        "attend_bf16",
        "attend_decode_bf16_64",
        "attend_decode_bf16_128",
        "attend_decode_bf16_256",
        "attend_block_bf16_64",
        "attend_block_bf16_128",
        "attend_block_bf16_256"
    ),
    module!(
        "attend_fp8",
        "attend_decode_fp8_64",
        "attend_decode_fp8_128",
        "attend_decode_fp8_256",
        "attend_block_fp8_64",
        "attend_block_fp8_128",
        "attend_block_fp8_256"
    ),
    module!("latent_bf16", "attend_latent_bf16"),
    module!("latent_fp8", "attend_latent_fp8"),
    module!("merge", "attend_merge"),
    module!("route", "route", "sort_pairs"),
    module!("pool", "pool"),
    module!("sample", "sample"),
    module!(
        "gemm_e4m3",
        "gemm_e4m3_m16",
        "gemm_e4m3_m64",
        "gemm_e4m3_m128",
        "gemm_experts_e4m3"
    ),
];

/// Where compiled kernels come from.
#[derive(Debug, Clone, Default)]
pub(super) struct Sources {
    /// Folders to look for NVRTC in, before the loader's own.
    pub(super) libraries: Vec<PathBuf>,
    /// Folder of cubins that were compiled before, by name and architecture.
    pub(super) images: Option<PathBuf>,
    /// Folder in which cubins are kept.
    pub(super) cache: Option<PathBuf>,
}

/// Returns the cubin of `module` for architecture `sm_{architecture}`.
///
/// A cache that cannot be read or written costs time, not the start.
pub(super) fn cubin(
    module: &Module,
    architecture: u32,
    sources: &Sources,
) -> Result<Vec<u8>, DeviceUnavailable> {
    if let Some(folder) = &sources.images {
        let path = folder.join(format!("{}.sm_{architecture}.cubin", module.name));
        return std::fs::read(&path).map_err(|error| DeviceUnavailable::Compiler {
            message: format!("read {}: {error}", path.display()),
        });
    }
    let version = open_compiler(&sources.libraries)?;
    let text = with_headers(module.text);
    let options = [
        format!("--gpu-architecture=sm_{architecture}"),
        "-std=c++17".to_owned(),
    ];
    let kept = sources
        .cache
        .as_deref()
        .map(|folder| folder.join(cache_name(module.name, &text, &options, version)));
    if let Some(image) = kept.as_deref().and_then(read_image) {
        return Ok(image);
    }
    let image = compile(module.name, &text, &options)?;
    if let Some(path) = kept {
        // The next start compiles again where this fails.
        let _ = keep(&path, &image);
    }
    Ok(image)
}

/// Puts the text of headers in the place of the lines that include them, each once.
fn with_headers(text: &str) -> String {
    fn append(out: &mut String, text: &str, seen: &mut Vec<&'static str>) {
        for line in text.lines() {
            let included = line
                .strip_prefix("#include \"")
                .and_then(|rest| rest.strip_suffix('"'))
                .and_then(|name| HEADERS.iter().find(|header| header.0 == name));
            match included {
                Some((name, _)) if seen.contains(name) => {}
                Some((name, header)) => {
                    seen.push(name);
                    append(out, header, seen);
                }
                None if line == "#pragma once" => {}
                None => {
                    out.push_str(line);
                    out.push('\n');
                }
            }
        }
    }
    let mut out = String::new();
    append(&mut out, text, &mut Vec::new());
    out
}

fn cache_name(module: &str, text: &str, options: &[String], version: (i32, i32)) -> String {
    let mut hash = SipHasher13::new();
    let version = format!("{}.{}", version.0, version.1);
    let parts = [text, version.as_str()].into_iter();
    for part in parts.chain(options.iter().map(String::as_str)) {
        hash.write_usize(part.len());
        hash.write(part.as_bytes());
    }
    let mut name = format!("{module}.");
    for byte in hash.finish128().as_bytes() {
        write!(name, "{byte:02x}").expect("writing to a string cannot fail");
    }
    name + ".cubin"
}

/// Returns a kept cubin, unless it is missing or cut off.
fn read_image(path: &Path) -> Option<Vec<u8>> {
    let image = std::fs::read(path).ok()?;
    is_whole(&image).then_some(image)
}

/// Returns whether an ELF image has all of its sections: their headers come last.
fn is_whole(image: &[u8]) -> bool {
    let number = |at: usize, bytes: usize| -> Option<u64> {
        let bytes = image.get(at..at + bytes)?;
        let number = bytes
            .iter()
            .rev()
            .fold(0, |number, &byte| number << 8 | u64::from(byte));
        Some(number)
    };
    let end = || {
        let headers = number(0x28, 8)?;
        headers.checked_add(number(0x3a, 2)? * number(0x3c, 2)?)
    };
    image.starts_with(b"\x7fELF") && end().is_some_and(|end| end <= image.len() as u64)
}

/// Writes beside the file and renames: a reader finds all of it or nothing.
fn keep(path: &Path, image: &[u8]) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let unfinished = path.with_extension(format!("new{}", std::process::id()));
    std::fs::write(&unfinished, image)?;
    std::fs::rename(&unfinished, path)
}

/// Finds NVRTC, and returns its version.
///
/// cudarc asks the loader by name: a library that was opened by its path before is found by that, too.
fn open_compiler(folders: &[PathBuf]) -> Result<(i32, i32), DeviceUnavailable> {
    for folder in folders {
        if open_first(folder, "libnvrtc.so") {
            break;
        }
    }
    // SAFETY: only looks for the library; loading it runs the vendor's own start-up code.
    if !unsafe { sys::is_culib_present() } {
        return Err(DeviceUnavailable::NoCompiler);
    }
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the library writes two numbers.
    let code = unsafe { sys::nvrtcVersion(&raw mut major, &raw mut minor) };
    match code.result() {
        Ok(()) => Ok((major, minor)),
        Err(error) => Err(DeviceUnavailable::Compiler {
            message: format!("{:?}", error.0),
        }),
    }
}

/// Opens the newest library of `folder` whose name starts with `name`, for good.
fn open_first(folder: &Path, name: &str) -> bool {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return false;
    };
    let mut paths: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| {
            path.file_name()
                .and_then(|file| file.to_str())
                .is_some_and(|file| file.starts_with(name))
        })
        .collect();
    paths.sort();
    paths.into_iter().rev().any(|path| {
        // SAFETY: runs the vendor's own start-up code, as the loader does when cudarc asks for it.
        match unsafe { libloading::Library::new(path) } {
            Ok(library) => {
                // It must stay open, so that the loader knows its name.
                std::mem::forget(library);
                true
            }
            Err(_) => false,
        }
    })
}

fn compile(name: &str, text: &str, options: &[String]) -> Result<Vec<u8>, DeviceUnavailable> {
    let failed = |message: String| DeviceUnavailable::Compiler {
        message: format!("compile {name}.cu: {message}"),
    };
    let text = CString::new(text).map_err(|_| failed("the text has a zero byte".to_owned()))?;
    // NVRTC reads the name as long as the program lives.
    let file = CString::new(format!("{name}.cu"))
        .map_err(|_| failed("the name has a zero byte".to_owned()))?;
    let program =
        result::create_program(&text, Some(&file)).map_err(|e| failed(format!("{:?}", e.0)))?;
    let program = Program(program);
    // SAFETY: the program was made just now, and the options have no zero byte.
    if let Err(error) = unsafe { result::compile_program(program.0, options) } {
        let log = program.log();
        let line = log.lines().find(|line| line.contains("error"));
        return Err(failed(format!("{:?} {}", error.0, line.unwrap_or(&log))));
    }
    let mut bytes = 0;
    // SAFETY: the program is compiled; the library writes one number.
    let code = unsafe { sys::nvrtcGetCUBINSize(program.0, &raw mut bytes) };
    code.result().map_err(|e| failed(format!("{:?}", e.0)))?;
    let mut image = vec![0u8; bytes];
    // SAFETY: the image has room for as many bytes as the library has said.
    let code = unsafe { sys::nvrtcGetCUBIN(program.0, image.as_mut_ptr().cast()) };
    code.result().map_err(|e| failed(format!("{:?}", e.0)))?;
    if image.is_empty() {
        return Err(failed("this NVRTC makes no code for the device".to_owned()));
    }
    Ok(image)
}

/// A program of NVRTC.
struct Program(sys::nvrtcProgram);

impl Program {
    fn log(&self) -> String {
        // SAFETY: the program lives as long as `self`.
        let Ok(log) = (unsafe { result::get_program_log(self.0) }) else {
            return String::new();
        };
        let bytes: Vec<u8> = log.iter().map(|&byte| byte as u8).collect();
        CStr::from_bytes_until_nul(&bytes)
            .map(|text| text.to_string_lossy().into_owned())
            .unwrap_or_default()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: nobody else has the program.
        let _ = unsafe { result::destroy_program(self.0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns an ELF image with one empty section, whose header comes last.
    fn image() -> Vec<u8> {
        let mut image = vec![0; 128];
        image[..4].copy_from_slice(b"\x7fELF");
        image[0x28..0x30].copy_from_slice(&64u64.to_le_bytes());
        image[0x3a..0x3c].copy_from_slice(&64u16.to_le_bytes());
        image[0x3c..0x3e].copy_from_slice(&1u16.to_le_bytes());
        image
    }

    #[test]
    fn every_include_is_replaced_once() {
        for module in &MODULES {
            let text = with_headers(module.text);
            assert!(!text.contains("#include"), "{}", module.name);
            assert_eq!(
                text.matches("typedef unsigned short u16;").count(),
                1,
                "{}",
                module.name
            );
        }
    }

    #[test]
    fn names_follow_from_all_that_a_cubin_is_made_of() {
        let options = ["a".to_owned(), "b".to_owned()];
        let name = cache_name("m", "text", &options, (13, 0));
        assert_eq!(name, cache_name("m", "text", &options, (13, 0)));
        assert_ne!(name, cache_name("m", "texts", &options, (13, 0)));
        assert_ne!(name, cache_name("m", "text", &options[..1], (13, 0)));
        assert_ne!(name, cache_name("m", "text", &options, (13, 1)));
    }

    #[test]
    fn cut_files_of_the_cache_are_not_used() {
        let folder = tempfile::tempdir().expect("there is a folder for temporary files");
        let path = folder.path().join("a/b.cubin");
        let whole = image();
        keep(&path, &whole).expect("the folder can be written");
        assert_eq!(read_image(&path), Some(whole.clone()));
        keep(&path, &whole[..whole.len() - 1]).expect("the folder can be written");
        assert_eq!(read_image(&path), None);
        keep(&path, b"").expect("the folder can be written");
        assert_eq!(read_image(&path), None);
    }
}
