//! A device and all that was made on it, behind calls that cannot be misused from safe code.
//!
//! Handles are plain numbers; the device owns what they name and frees it when it goes. One stream runs
//! everything, in order. Nothing here waits but [`Device::wait`], [`Device::drain`] and the allocations.
#![expect(unsafe_code, reason = "calls of the CUDA driver")]

use std::ffi::{CString, c_void};
use std::marker::PhantomData;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;

use super::DeviceUnavailable;

/// The oldest driver that loads what the compilers of today make, as the driver counts.
const DRIVER_VERSION_MIN: i32 = 12_000;

/// The oldest architecture with bf16 products and asynchronous copies.
const ARCHITECTURE_MIN: u32 = 80;

/// The most arguments of a kernel.
const ARGUMENTS_MAX: usize = 16;

/// Shared memory that every kernel may use without asking.
const SHARED_BYTES_PLAIN: u32 = 48 << 10;

/// What the driver said, in its words.
pub(super) type Said<T> = Result<T, String>;

/// Memory of the host that the device copies from and to by itself.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pinned {
    at: usize,
    words: usize,
}

/// A mark in the stream.
#[derive(Debug, Clone, Copy)]
pub(super) struct Event(usize);

/// A kernel that is ready to launch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Function {
    at: usize,
    shared_bytes: u32,
}

/// Launches that were captured.
#[derive(Debug, Clone, Copy)]
pub(super) struct Graph(usize);

/// Threads of a launch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    /// Blocks.
    pub(super) grid: (u32, u32, u32),
    /// Threads of a block.
    pub(super) block: u32,
    /// Dynamic shared memory of a block.
    pub(super) shared_bytes: u32,
}

impl Shape {
    /// Returns blocks in one dimension.
    pub(super) fn rows(rows: usize, block: u32) -> Self {
        Self {
            grid: (rows as u32, 1, 1),
            block,
            shared_bytes: 0,
        }
    }

    /// Asks for dynamic shared memory.
    pub(super) fn with_shared(self, bytes: usize) -> Self {
        Self {
            shared_bytes: bytes as u32,
            ..self
        }
    }
}

/// One argument of a kernel.
#[derive(Debug, Clone, Copy)]
pub(super) enum Argument<'a> {
    /// An address on the device; 0 is absent.
    Address(u64),
    /// A number.
    U32(u32),
    /// A number.
    F32(f32),
    /// A structure that travels by value.
    Structure(*const c_void, PhantomData<&'a ()>),
}

impl<'a> Argument<'a> {
    /// Passes `value` by value; its type is the twin of the kernel's.
    pub(super) fn structure<T: super::args::Twin>(value: &'a T) -> Self {
        Argument::Structure(std::ptr::from_ref(value).cast(), PhantomData)
    }

    fn pointer(&self) -> *mut c_void {
        match self {
            Argument::Address(value) => std::ptr::from_ref(value).cast_mut().cast(),
            Argument::U32(value) => std::ptr::from_ref(value).cast_mut().cast(),
            Argument::F32(value) => std::ptr::from_ref(value).cast_mut().cast(),
            Argument::Structure(value, _) => value.cast_mut(),
        }
    }
}

/// A GPU, its context, and its stream.
#[derive(Debug)]
pub(super) struct Device {
    ordinal: sys::CUdevice,
    context: sys::CUcontext,
    stream: sys::CUstream,
    name: String,
    architecture: u32,
    multiprocessors: u32,
    shared_bytes_max: u32,
    memory: Vec<sys::CUdeviceptr>,
    pinned: Vec<*mut c_void>,
    events: Vec<sys::CUevent>,
    graphs: Vec<sys::CUgraphExec>,
    modules: Vec<sys::CUmodule>,
    allocations: usize,
}

// SAFETY: a context may be used from any thread that makes it current, which `bind` does before each step.
unsafe impl Send for Device {}

impl Device {
    /// Opens device `index`.
    pub(super) fn open(index: usize) -> Result<Self, DeviceUnavailable> {
        // SAFETY: only looks for the library; loading it runs the vendor's own start-up code.
        if !unsafe { sys::is_culib_present() } {
            return Err(DeviceUnavailable::NoDriver);
        }
        match result::init() {
            Ok(()) => {}
            Err(DriverError(sys::CUresult::CUDA_ERROR_NO_DEVICE)) => {
                return Err(DeviceUnavailable::NoDevice);
            }
            Err(error) => return Err(DeviceUnavailable::Driver(said(error))),
        }
        let mut version = 0;
        // SAFETY: the driver writes one number.
        let code = unsafe { sys::cuDriverGetVersion(&raw mut version) };
        code.result().map_err(unavailable)?;
        if version < DRIVER_VERSION_MIN {
            return Err(DeviceUnavailable::OldDriver {
                found: shown_version(version),
                needed: shown_version(DRIVER_VERSION_MIN),
            });
        }
        let count = result::device::get_count().map_err(unavailable)?.max(0) as usize;
        if count == 0 {
            return Err(DeviceUnavailable::NoDevice);
        }
        if index >= count {
            return Err(DeviceUnavailable::NoSuchDevice { index, count });
        }
        let ordinal = result::device::get(index as i32).map_err(unavailable)?;
        let attribute = |which| -> Result<u32, DeviceUnavailable> {
            // SAFETY: the driver has just given this device.
            let value = unsafe { result::device::get_attribute(ordinal, which) };
            Ok(value.map_err(unavailable)?.max(0) as u32)
        };
        use sys::CUdevice_attribute as Attribute;
        let architecture = 10 * attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?
            + attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        let name = result::device::get_name(ordinal).map_err(unavailable)?;
        if architecture < ARCHITECTURE_MIN {
            return Err(DeviceUnavailable::OldDevice { name, architecture });
        }
        let multiprocessors = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let shared_bytes_max =
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
        // SAFETY: the driver has just given this device.
        let context = unsafe { result::primary_ctx::retain(ordinal) }.map_err(unavailable)?;
        let mut device = Self {
            ordinal,
            context,
            stream: std::ptr::null_mut(),
            name,
            architecture,
            multiprocessors: multiprocessors.max(1),
            shared_bytes_max,
            memory: Vec::new(),
            pinned: Vec::new(),
            events: Vec::new(),
            graphs: Vec::new(),
            modules: Vec::new(),
            allocations: 0,
        };
        device.bind().map_err(DeviceUnavailable::Driver)?;
        device.stream =
            result::stream::create(result::stream::StreamKind::NonBlocking).map_err(unavailable)?;
        Ok(device)
    }

    /// Returns its name.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Returns its compute capability, as in `sm_90`.
    pub(super) fn architecture(&self) -> u32 {
        self.architecture
    }

    /// Returns how many multiprocessors it has.
    pub(super) fn multiprocessors(&self) -> u32 {
        self.multiprocessors
    }

    /// Returns the most shared memory that a block may ask for.
    pub(super) fn shared_bytes_max(&self) -> u32 {
        self.shared_bytes_max
    }

    /// Returns how often memory of any kind was allocated.
    pub(super) fn allocations(&self) -> usize {
        self.allocations
    }

    /// Makes the device current on this thread.
    pub(super) fn bind(&self) -> Said<()> {
        // SAFETY: the context is retained as long as `self` lives.
        unsafe { result::ctx::set_current(self.context) }.map_err(said)
    }

    /// Returns free and total bytes.
    pub(super) fn memory_bytes(&self) -> Said<(usize, usize)> {
        result::mem_get_info().map_err(said)
    }

    /// Allocates `bytes` on the device; none where it has no room.
    pub(super) fn allocate(&mut self, bytes: usize) -> Said<Option<u64>> {
        // SAFETY: what is in the memory is written before it is read: the kernels' contract.
        match unsafe { result::malloc_sync(bytes) } {
            Ok(at) => {
                self.memory.push(at);
                self.allocations += 1;
                Ok(Some(at))
            }
            Err(DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => Ok(None),
            Err(error) => Err(said(error)),
        }
    }

    /// Allocates `words` of pinned memory, all zero.
    pub(super) fn allocate_pinned(&mut self, words: usize) -> Said<Pinned> {
        let words = words.max(1);
        // SAFETY: the memory is filled below, before anything reads it.
        let at = unsafe { result::malloc_host(4 * words, 0) }.map_err(said)?;
        self.pinned.push(at);
        self.allocations += 1;
        // SAFETY: the driver has just given `4 * words` bytes, aligned to a page.
        unsafe { std::ptr::write_bytes(at.cast::<u8>(), 0, 4 * words) };
        Ok(Pinned {
            at: at as usize,
            words,
        })
    }

    /// Returns words of pinned memory to write.
    ///
    /// The caller sees to it, by events, that no copy of the device that uses them is under way.
    pub(super) fn words_mut(&mut self, pinned: Pinned, first: usize, len: usize) -> &mut [u32] {
        let end = first.checked_add(len).expect("a range of memory");
        assert!(end <= pinned.words, "the range is inside the pinned memory");
        // SAFETY: the memory lives as long as `self`, holds `words` words, and is borrowed with `self`.
        unsafe { std::slice::from_raw_parts_mut((pinned.at as *mut u32).wrapping_add(first), len) }
    }

    /// Returns words of pinned memory to read; see [`Device::words_mut`].
    pub(super) fn words(&self, pinned: Pinned, first: usize, len: usize) -> &[u32] {
        let end = first.checked_add(len).expect("a range of memory");
        assert!(end <= pinned.words, "the range is inside the pinned memory");
        // SAFETY: as above, and `&self` keeps `words_mut` away.
        unsafe { std::slice::from_raw_parts((pinned.at as *const u32).wrapping_add(first), len) }
    }

    /// Enqueues a copy of `len` words of pinned memory to the device.
    pub(super) fn copy_in(&self, to: u64, pinned: Pinned, first: usize, len: usize) -> Said<()> {
        if len == 0 {
            return Ok(());
        }
        let words = self.words(pinned, first, len);
        // SAFETY: the words are pinned and stay; the driver checks the device's side.
        unsafe { result::memcpy_htod_async(to, words, self.stream) }.map_err(said)
    }

    /// Enqueues a copy of `len` words from the device to pinned memory.
    pub(super) fn copy_out(
        &mut self,
        pinned: Pinned,
        first: usize,
        from: u64,
        len: usize,
    ) -> Said<()> {
        if len == 0 {
            return Ok(());
        }
        let stream = self.stream;
        let words = self.words_mut(pinned, first, len);
        // SAFETY: the words are pinned and stay; who reads them waits for an event first.
        unsafe { result::memcpy_dtoh_async(words, from, stream) }.map_err(said)
    }

    /// Enqueues zeros.
    pub(super) fn clear(&self, at: u64, bytes: usize) -> Said<()> {
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the driver checks the range.
        unsafe { result::memset_d8_async(at, 0, bytes, self.stream) }.map_err(said)
    }

    /// Loads a compiled module, and returns its kernels of these names.
    pub(super) fn load(&mut self, image: &[u8], names: &[&'static str]) -> Said<Vec<Function>> {
        // SAFETY: the image is a whole cubin in memory; the driver refuses what is none.
        let module = unsafe { result::module::load_data(image.as_ptr().cast()) }.map_err(said)?;
        self.modules.push(module);
        names
            .iter()
            .map(|name| {
                let text = CString::new(*name).expect("names of kernels have no zero byte");
                // SAFETY: the module is loaded, and stays so as long as `self` lives.
                let function = unsafe { result::module::get_function(module, text) }
                    .map_err(|error| format!("{name}: {}", said(error)))?;
                Ok(Function {
                    at: function as usize,
                    shared_bytes: SHARED_BYTES_PLAIN,
                })
            })
            .collect()
    }

    /// Enqueues a kernel, whose arguments are those of its signature.
    pub(super) fn launch(
        &self,
        function: &mut Function,
        shape: Shape,
        arguments: &[Argument<'_>],
    ) -> Said<()> {
        assert!(
            arguments.len() <= ARGUMENTS_MAX,
            "kernels have at most {ARGUMENTS_MAX} arguments"
        );
        if shape.shared_bytes > function.shared_bytes {
            // SAFETY: the function belongs to a module that is loaded.
            unsafe {
                result::function::set_function_attribute(
                    function.at as sys::CUfunction,
                    sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                    shape.shared_bytes as i32,
                )
            }
            .map_err(said)?;
            function.shared_bytes = shape.shared_bytes;
        }
        let mut pointers = [std::ptr::null_mut(); ARGUMENTS_MAX];
        for (pointer, argument) in pointers.iter_mut().zip(arguments) {
            *pointer = argument.pointer();
        }
        // SAFETY: the arguments are those that kernels/README.md states, and the driver copies them now.
        unsafe {
            result::launch_kernel(
                function.at as sys::CUfunction,
                shape.grid,
                (shape.block, 1, 1),
                shape.shared_bytes,
                self.stream,
                &mut pointers[..arguments.len()],
            )
        }
        .map_err(said)
    }

    /// Starts to record what is enqueued, in place of running it.
    pub(super) fn begin_capture(&self) -> Said<()> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream lives as long as `self`.
        unsafe { result::stream::begin_capture(self.stream, mode) }.map_err(said)
    }

    /// Ends the recording.
    pub(super) fn end_capture(&mut self) -> Said<Graph> {
        // SAFETY: the stream lives as long as `self`.
        let graph = unsafe { result::stream::end_capture(self.stream) }.map_err(said)?;
        // SAFETY: the capture has just given the graph.
        let executable =
            unsafe { result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0)) }
                .map_err(said);
        // SAFETY: an executable does not need the graph that it was made of.
        unsafe { result::graph::destroy(graph) }.map_err(said)?;
        let executable = executable?;
        self.graphs.push(executable);
        Ok(Graph(executable as usize))
    }

    /// Enqueues a recording.
    pub(super) fn replay(&self, graph: Graph) -> Said<()> {
        // SAFETY: graphs live as long as `self`.
        unsafe { result::graph::launch(graph.0 as sys::CUgraphExec, self.stream) }.map_err(said)
    }

    /// Makes a mark.
    pub(super) fn event(&mut self) -> Said<Event> {
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING;
        let event = result::event::create(flags).map_err(said)?;
        self.events.push(event);
        Ok(Event(event as usize))
    }

    /// Moves a mark behind all that was enqueued.
    pub(super) fn record(&self, event: Event) -> Said<()> {
        // SAFETY: events live as long as `self`.
        unsafe { result::event::record(event.0 as sys::CUevent, self.stream) }.map_err(said)
    }

    /// Blocks until the device has passed a mark.
    pub(super) fn wait(&self, event: Event) -> Said<()> {
        // SAFETY: events live as long as `self`.
        unsafe { result::event::synchronize(event.0 as sys::CUevent) }.map_err(said)
    }

    /// Blocks until the stream is empty.
    pub(super) fn drain(&self) -> Said<()> {
        // SAFETY: the stream lives as long as `self`.
        unsafe { result::stream::synchronize(self.stream) }.map_err(said)
    }
}

impl Drop for Device {
    /// Frees all; errors say only that the device is gone already.
    fn drop(&mut self) {
        if self.bind().is_err() {
            return;
        }
        let _ = self.drain();
        for graph in self.graphs.drain(..) {
            // SAFETY: nothing runs any more, and nobody has the handle.
            let _ = unsafe { result::graph::exec_destroy(graph) };
        }
        for event in self.events.drain(..) {
            // SAFETY: as above.
            let _ = unsafe { result::event::destroy(event) };
        }
        for module in self.modules.drain(..) {
            // SAFETY: as above.
            let _ = unsafe { result::module::unload(module) };
        }
        for at in self.memory.drain(..) {
            // SAFETY: as above.
            let _ = unsafe { result::free_sync(at) };
        }
        for at in self.pinned.drain(..) {
            // SAFETY: as above.
            let _ = unsafe { result::free_host(at) };
        }
        if !self.stream.is_null() {
            // SAFETY: as above.
            let _ = unsafe { result::stream::destroy(self.stream) };
        }
        // SAFETY: `open` has retained it once.
        let _ = unsafe { result::primary_ctx::release(self.ordinal) };
    }
}

fn said(error: DriverError) -> String {
    match error.error_string() {
        Ok(text) => text.to_string_lossy().into_owned(),
        Err(_) => format!("{:?}", error.0),
    }
}

fn unavailable(error: DriverError) -> DeviceUnavailable {
    DeviceUnavailable::Driver(said(error))
}

/// The driver counts 12.4 as 12040.
fn shown_version(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}
