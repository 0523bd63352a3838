/* Compiles an ONNX graph for an Intel NPU with OpenVINO's C interface. A program for Windows, which wine runs on Linux.
 *
 * Usage: driver LIBRARY GRAPH BLOB PLATFORM. LIBRARY is openvino_c.dll, in the folder of OpenVINO's other libraries.
 * Lines of the answer on standard output: `openvino` with its version, then `compiled`, or `refused` with OpenVINO's
 * message. `failed` states why OpenVINO could not be used. All other lines are the compiler's log.
 * The program ends when its standard input closes. */
#include <fcntl.h>
#include <io.h>
#include <stdio.h>
#include <windows.h>

typedef struct { const char *build, *description; } Version;
typedef void *Handle;

static const char *(*last_error)(void);

static DWORD WINAPI end_with_input(LPVOID input) {
    char byte;
    DWORD read;
    while (ReadFile(input, &byte, 1, &read, NULL) && read > 0) {}
    ExitProcess(4);
}

static int fail(const char *reason) {
    printf("\nfailed %s\n", reason);
    return 2;
}

static int refuse(const char *step) {
    const char *message = last_error ? last_error() : NULL;
    printf("\nrefused %s: %s\n", step, message && *message ? message : "no message");
    return 1;
}

int wmain(int count, wchar_t **arguments) {
    /* Lines end as on Linux. */
    _setmode(_fileno(stdout), _O_BINARY);
    setvbuf(stdout, NULL, _IONBF, 0);
    if (count != 5) return fail("four arguments are expected");
    CreateThread(NULL, 0, end_with_input, GetStdHandle(STD_INPUT_HANDLE), 0, NULL);
    HMODULE library = LoadLibraryExW(arguments[1], NULL, LOAD_WITH_ALTERED_SEARCH_PATH);
    if (!library) return fail("OpenVINO's library cannot be loaded");

    int (*get_version)(Version *) = (void *)GetProcAddress(library, "ov_get_openvino_version");
    int (*create)(Handle *) = (void *)GetProcAddress(library, "ov_core_create");
    int (*read)(Handle, const wchar_t *, const wchar_t *, Handle *) =
        (void *)GetProcAddress(library, "ov_core_read_model_unicode");
    int (*compile)(Handle, Handle, const char *, size_t, Handle *, ...) =
        (void *)GetProcAddress(library, "ov_core_compile_model");
    int (*export)(Handle, const char *) = (void *)GetProcAddress(library, "ov_compiled_model_export_model");
    last_error = (void *)GetProcAddress(library, "ov_get_last_err_msg");
    if (!get_version || !create || !read || !compile || !export || !last_error)
        return fail("OpenVINO's library lacks a function");

    char platform[16], blob[1024];
    if (!WideCharToMultiByte(CP_ACP, 0, arguments[4], -1, platform, sizeof platform, NULL, NULL)
        || !WideCharToMultiByte(CP_UTF8, 0, arguments[3], -1, blob, sizeof blob, NULL, NULL))
        return fail("an argument is too long");
    Version version = {0};
    if (!get_version(&version)) printf("openvino %s\n", version.build);
    Handle core, model, compiled;
    if (create(&core)) return refuse("start");
    if (read(core, arguments[2], NULL, &model)) return refuse("read");
    if (compile(core, model, "NPU", 4, &compiled, "NPU_PLATFORM", platform, "LOG_LEVEL", "LOG_ERROR"))
        return refuse("compile");
    if (export(compiled, blob)) return refuse("write");
    printf("\ncompiled\n");
    return 0;
}
