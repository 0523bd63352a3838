//! Intel's compiler for NPUs in this process, through OpenVINO's C interface. It needs no NPU.

use std::{
    ffi::{CStr, CString, c_char, c_int},
    io,
    os::windows::ffi::OsStrExt,
    path::{self, Path},
    ptr,
};

use windows_sys::Win32::{
    Foundation::HMODULE,
    System::LibraryLoader::{GetProcAddress, LOAD_WITH_ALTERED_SEARCH_PATH, LoadLibraryExW},
};

/// An object of OpenVINO.
type Handle = *mut std::ffi::c_void;

/// Functions of OpenVINO's library.
struct OpenVino {
    create: unsafe extern "C" fn(*mut Handle) -> c_int,
    read: unsafe extern "C" fn(Handle, *const u16, *const u16, *mut Handle) -> c_int,
    compile: unsafe extern "C" fn(Handle, Handle, *const c_char, usize, *mut Handle, ...) -> c_int,
    export: unsafe extern "C" fn(Handle, *const c_char) -> c_int,
    last_error: unsafe extern "C" fn() -> *const c_char,
    free_core: unsafe extern "C" fn(Handle),
    free_model: unsafe extern "C" fn(Handle),
    free_compiled: unsafe extern "C" fn(Handle),
}

/// Compiles a graph for a platform of Intel's NPUs into a new file. `library` is `openvino_c.dll`. The inner error is the
/// compiler's message.
///
/// # Errors
/// Returns an error if the library cannot be loaded.
pub fn compile(library: &Path, graph: &Path, blob: &Path, platform: u32) -> io::Result<Result<(), String>> {
    let openvino = OpenVino::load(library)?;
    let graph = wide(&path::absolute(graph)?);
    let invalid = |_| io::Error::new(io::ErrorKind::InvalidInput, "a path contains a zero");
    let blob = CString::new(path::absolute(blob)?.to_string_lossy().into_owned()).map_err(invalid)?;
    let platform = CString::new(platform.to_string()).map_err(invalid)?;
    // SAFETY: every function has the type that OpenVINO's headers declare, every text ends with a zero, and every object is
    // passed on only after the call that made it has succeeded.
    Ok(unsafe { openvino.run(&graph, &blob, &platform) })
}

/// Returns a path as Windows reads it, with a zero at its end.
fn wide(path: &Path) -> Vec<u16> {
    path.as_os_str().encode_wide().chain([0]).collect()
}

impl OpenVino {
    /// Loads the library with those in its folder. It stays loaded, because its threads do.
    fn load(library: &Path) -> io::Result<Self> {
        let path = wide(&path::absolute(library)?);
        // SAFETY: the path ends with a zero.
        let module = unsafe { LoadLibraryExW(path.as_ptr(), ptr::null_mut(), LOAD_WITH_ALTERED_SEARCH_PATH) };
        if module.is_null() {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the types are those that OpenVINO's headers declare for these names.
        unsafe {
            Ok(Self {
                create: function(module, c"ov_core_create")?,
                read: function(module, c"ov_core_read_model_unicode")?,
                compile: function(module, c"ov_core_compile_model")?,
                export: function(module, c"ov_compiled_model_export_model")?,
                last_error: function(module, c"ov_get_last_err_msg")?,
                free_core: function(module, c"ov_core_free")?,
                free_model: function(module, c"ov_model_free")?,
                free_compiled: function(module, c"ov_compiled_model_free")?,
            })
        }
    }

    /// Reads, compiles and writes a graph.
    ///
    /// # Safety
    /// `graph` must end with a zero.
    unsafe fn run(&self, graph: &[u16], blob: &CStr, platform: &CStr) -> Result<(), String> {
        let mut core: Handle = ptr::null_mut();
        let mut model: Handle = ptr::null_mut();
        let mut compiled: Handle = ptr::null_mut();
        // SAFETY: see `compile`. The two further arguments of the compile are one property.
        let outcome = unsafe {
            self.check("start", (self.create)(&mut core))
                .and_then(|()| self.check("read", (self.read)(core, graph.as_ptr(), ptr::null(), &mut model)))
                .and_then(|()| {
                    let npu = c"NPU".as_ptr();
                    let key = c"NPU_PLATFORM".as_ptr();
                    let status = (self.compile)(core, model, npu, 2, &mut compiled, key, platform.as_ptr());
                    self.check("compile", status)
                })
                .and_then(|()| self.check("write", (self.export)(compiled, blob.as_ptr())))
        };
        // SAFETY: each object was made by its own function and is released once.
        unsafe {
            for (object, free) in
                [(compiled, self.free_compiled), (model, self.free_model), (core, self.free_core)]
            {
                if !object.is_null() {
                    free(object);
                }
            }
        }
        outcome
    }

    /// Returns OpenVINO's message if a step failed.
    fn check(&self, step: &str, status: c_int) -> Result<(), String> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: the message is a text of the library, which stays until the next call, or null.
        let message = unsafe {
            let message = (self.last_error)();
            if message.is_null() { "no message".into() } else { CStr::from_ptr(message).to_string_lossy() }
        };
        Err(format!("{step}: {message}"))
    }
}

/// Returns a function of a library.
///
/// # Safety
/// `F` must be the type of the function with this name.
unsafe fn function<F: Copy>(module: HMODULE, name: &CStr) -> io::Result<F> {
    // SAFETY: the name ends with a zero.
    let found = unsafe { GetProcAddress(module, name.as_ptr().cast()) };
    let missing = || io::Error::other(format!("OpenVINO's library has no function {name:?}"));
    let found = found.ok_or_else(missing)?;
    // SAFETY: both are pointers to functions, and the caller states the type.
    Ok(unsafe { std::mem::transmute_copy(&found) })
}
