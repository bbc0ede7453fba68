//! AMX: a core's matrix unit multiplies 16 rows with 16 columns in one instruction.
//!
//! A tile register holds 16 rows of 64 bytes: rows of activations as they lie in memory, or 16 lanes of the summed
//! dimension for 16 columns, which is how a panel is packed. Two tiles of rows and the two halves of a panel are in
//! registers while all of the summed dimension passes by; the unit is then busy, and the loads hide behind it.
//! Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18.
#![expect(
    unsafe_code,
    reason = "instructions that the compiler has no stable intrinsics for"
)]

pub(super) mod attention;
pub(super) mod weights;

use std::arch::asm;
use std::sync::OnceLock;

/// Rows of a tile register.
pub(super) const TILE_ROWS: usize = 16;

/// Tile registers.
const TILES: usize = 8;

/// What `LDTILECFG` reads: rows and bytes of a row of each register.
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Config {
    /// Makes the configuration of registers with `(rows, bytes)`.
    const fn new(shapes: [(u8, u16); TILES]) -> Self {
        let mut config = Self {
            palette: 1,
            start_row: 0,
            reserved: [0; 14],
            row_bytes: [0; 16],
            rows: [0; 16],
        };
        let mut tile = 0;
        while tile < TILES {
            (config.rows[tile], config.row_bytes[tile]) = shapes[tile];
            tile += 1;
        }
        config
    }
}

static WEIGHTS: Config = Config::new([(16, 64); TILES]);

/// Returns whether the processor has tiles of 8-bit integers and of bf16, and the system lets this process use them.
pub(super) fn is_available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| {
        /// Bits of EDX of leaf 7: AMX-BF16, AMX-TILE, AMX-INT8.
        const FEATURES: u32 = 1 << 22 | 1 << 24 | 1 << 25;
        let leaves = std::arch::x86_64::__cpuid(0).eax;
        leaves >= 7
            && std::arch::x86_64::__cpuid_count(7, 0).edx & FEATURES == FEATURES
            && is_permitted()
    })
}

/// Asks the system for the registers: threads have them only in a process that has asked.
#[cfg(target_os = "linux")]
fn is_permitted() -> bool {
    const SYS_ARCH_PRCTL: isize = 158;
    const ARCH_REQ_XCOMP_PERM: usize = 0x1023;
    const XFEATURE_XTILEDATA: usize = 18;
    let result: isize;
    // SAFETY: the call only widens what the process may use; a kernel that does not know it answers with an error.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") SYS_ARCH_PRCTL => result,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") XFEATURE_XTILEDATA,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result == 0
}

#[cfg(not(target_os = "linux"))]
fn is_permitted() -> bool {
    false
}

/// Sets the registers up, with zeros in them.
///
/// # Safety
///
/// [`is_available`] has returned true.
#[inline(always)]
unsafe fn configure(config: &Config) {
    // SAFETY: the caller's promise; the configuration is a valid one.
    unsafe {
        asm!(
            "ldtilecfg [{config}]",
            config = in(reg) std::ptr::from_ref(config),
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack, readonly, preserves_flags),
        );
    }
}

/// The tile registers of this thread, in use.
pub(super) struct Tiles(());

impl Tiles {
    /// Sets the registers up for products with weights.
    ///
    /// # Safety
    ///
    /// [`is_available`] has returned true.
    #[inline(always)]
    pub(super) unsafe fn open() -> Self {
        // SAFETY: the caller's promise.
        unsafe { configure(&WEIGHTS) };
        Self(())
    }
}

impl Drop for Tiles {
    /// Lets go of the registers: a switch to another thread need not save them.
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: the registers were set up, so the processor has the instruction.
        unsafe {
            asm!(
                "tilerelease",
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack, nomem, preserves_flags),
            );
        }
    }
}
