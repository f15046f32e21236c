// SPDX-License-Identifier: Apache-2.0
//
// An OpenCL layer that presents Intel's CPU OpenCL runtime as an Intel integrated GPU, so that the real OpenVINO GPU
// plugin (device enumeration, kernel build, scheduler, KV cache, cancel, metrics) runs on any x86-64 Linux machine.
//
// What it emulates:
//  - the device: type GPU, a name, an Xe-LP (12.0.0) without matrix engines, its slices, sub-groups of 8, 16 and 32;
//  - sub-groups over the linearised local id, which the CPU runtime forms along dimension 0 only;
//  - small leniencies of the GPU compiler (pointer types, native_powr of a negative base, mad with a half);
//  - programs that may be retained after their last release, by leaking one reference each, on purpose.
//
// Limits: it is a device for functional tests. It says nothing about real hardware, its speed, its memory, its hangs
// or its driver. Compute in f32 with a u8 KV cache fails in the plugin; f16 differs in a token now and then.
//
// It needs no OpenCL headers: the dispatch table of OpenCL is an array of function pointers whose order is fixed for
// ever (CL/cl_icd.h of the Khronos headers), and the few values used below are written out.
//
// Build: cc -O1 -shared -fPIC emulated_gpu.c -o libemulatedgpu.so
// Use:   OPENCL_LAYERS=<path>/libemulatedgpu.so OCL_ICD_FILENAMES=<runtime>/libintelocl.so (see emulation.py)
// Debug: EMULATED_GPU_LOG=1 prints failed builds and launches; EMULATED_GPU_DUMP=<dir> writes the kernels' sources.

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void *handle;  // platform, device, context, program, queue, kernel, event
typedef void (*entry)(void);

enum slot {  // places in the dispatch table
    GET_DEVICE_IDS = 2,
    GET_DEVICE_INFO = 3,
    CREATE_PROGRAM_WITH_SOURCE = 26,
    CREATE_PROGRAM_WITH_BINARY = 27,
    RETAIN_PROGRAM = 28,
    BUILD_PROGRAM = 30,
    GET_PROGRAM_INFO = 32,
    GET_PROGRAM_BUILD_INFO = 33,
    GET_KERNEL_INFO = 39,
    ENQUEUE_ND_RANGE_KERNEL = 59,
    SLOTS = 149,
};

enum {
    SUCCESS = 0,
    DEVICE_NOT_FOUND = -1,
    INVALID_VALUE = -30,
    TYPE_DEFAULT = 1,
    TYPE_CPU = 2,
    TYPE_GPU = 4,
    LAYER_API_VERSION = 0x4240,
    LAYER_NAME = 0x4241,
    KERNEL_FUNCTION_NAME = 0x1190,
    PROGRAM_DEVICES = 0x1163,
    PROGRAM_BUILD_LOG = 0x1183,
};
static const uint64_t TYPE_ALL = 0xFFFFFFFF;

typedef int32_t (*get_device_ids)(handle, uint64_t, uint32_t, handle *, uint32_t *);
typedef int32_t (*get_info)(handle, uint32_t, size_t, void *, size_t *);
typedef int32_t (*get_build_info)(handle, handle, uint32_t, size_t, void *, size_t *);
typedef int32_t (*retain)(handle);
typedef handle (*create_with_source)(handle, uint32_t, const char **, const size_t *, int32_t *);
typedef handle (*create_with_binary)(handle, uint32_t, const handle *, const size_t *, const unsigned char **, int32_t *, int32_t *);
typedef int32_t (*build_program)(handle, uint32_t, const handle *, const char *, void (*)(handle, void *), void *);
typedef int32_t (*enqueue_nd_range)(handle, handle, uint32_t, const size_t *, const size_t *, const size_t *, uint32_t, const handle *, handle *);

static entry ours[SLOTS];    // what the loader calls
static const entry *below;   // the CPU runtime's own
static int loud;

#define BELOW(type, slot) ((type)below[slot])

static int32_t answer(const void *value, size_t length, size_t room, void *out, size_t *needed) {
    if (needed) *needed = length;
    if (!out) return SUCCESS;
    if (room < length) return INVALID_VALUE;
    memcpy(out, value, length);
    return SUCCESS;
}

// --- the device ------------------------------------------------------------------------------------------------------

static int32_t device_ids(handle platform, uint64_t type, uint32_t room, handle *out, uint32_t *count) {
    if (type != TYPE_ALL) {
        if (!(type & (TYPE_GPU | TYPE_DEFAULT))) {
            if (count) *count = 0;
            return DEVICE_NOT_FOUND;
        }
        type = TYPE_CPU;
    }
    return BELOW(get_device_ids, GET_DEVICE_IDS)(platform, type, room, out, count);
}

static int32_t extensions(handle device, uint32_t key, size_t room, void *out, size_t *needed) {
    static const char DROPPED[] = "cl_intel_bfloat16", ADDED[] = " cl_khr_subgroups";
    size_t length = 0;
    int32_t error = BELOW(get_info, GET_DEVICE_INFO)(device, key, 0, NULL, &length);
    if (error) return error;
    char *text = calloc(1, length + sizeof ADDED);
    error = BELOW(get_info, GET_DEVICE_INFO)(device, key, length, text, NULL);
    if (!error) {
        char *found = strstr(text, DROPPED);
        if (found) memset(found, ' ', sizeof DROPPED - 1);
        if (!strstr(text, ADDED + 1)) strcat(text, ADDED);
        error = answer(text, strlen(text) + 1, room, out, needed);
    }
    free(text);
    return error;
}

static int32_t device_info(handle device, uint32_t key, size_t room, void *out, size_t *needed) {
    static const char NAME[] = "Intel(R) UHD Graphics [emulated on a CPU]";
    static const size_t SUB_GROUPS[] = {8, 16, 32};
    uint32_t u32;
    uint64_t u64;
    switch (key) {
    case 0x1000: u64 = TYPE_GPU; break;    // CL_DEVICE_TYPE
    case 0x1023: u64 = 65536; break;       // CL_DEVICE_LOCAL_MEM_SIZE
    case 0x1004: u64 = 512; break;         // CL_DEVICE_MAX_WORK_GROUP_SIZE (size_t)
    case 0x4256: u64 = 0; break;           // features: no DP4A, no DPAS
    case 0x100C: u32 = 1200; goto narrow;  // CL_DEVICE_MAX_CLOCK_FREQUENCY
    case 0x1002: u32 = 32; goto narrow;    // CL_DEVICE_MAX_COMPUTE_UNITS
    case 0x1043: u32 = 0; goto narrow;     // CL_DEVICE_PARTITION_MAX_SUB_DEVICES
    case 0x4250: u32 = 0x03000000; goto narrow;  // IP version: 12.0.0 (Tiger Lake LP)
    case 0x4251: u32 = 0x9A49; goto narrow;      // device id
    case 0x4252: u32 = 1; goto narrow;           // slices
    case 0x4253: u32 = 2; goto narrow;           // sub-slices a slice
    case 0x4254: u32 = 16; goto narrow;          // execution units a sub-slice
    case 0x4255: u32 = 7; goto narrow;           // threads an execution unit
    case 0x102B: return answer(NAME, sizeof NAME, room, out, needed);
    case 0x4108: return answer(SUB_GROUPS, sizeof SUB_GROUPS, room, out, needed);  // CL_DEVICE_SUB_GROUP_SIZES_INTEL
    case 0x1030: return extensions(device, key, room, out, needed);
    default: return BELOW(get_info, GET_DEVICE_INFO)(device, key, room, out, needed);
    }
    return answer(&u64, sizeof u64, room, out, needed);
narrow:
    return answer(&u32, sizeof u32, room, out, needed);
}

// --- programs --------------------------------------------------------------------------------------------------------

// A work-group (lx,ly,lz) with ly*lz > 1 is launched as (lx*ly*lz,1,1), so that the CPU runtime's sub-groups run over
// its linearised id as a GPU's do, and the id built-ins are redefined in the source. lx and ly travel in the global
// offsets of dimensions 1 and 2, which the plugin does not use.
static const char PREFIX[] =
    "#pragma clang diagnostic ignored \"-Wincompatible-pointer-types\"\n"  // an error in this clang, a warning in the GPU's
    "#define EMU_X ((uint)get_global_offset(1))\n"
    "#define EMU_Y ((uint)get_global_offset(2))\n"
    "#define EMU static inline size_t __attribute__((overloadable,always_inline))\n"
    "EMU emu_lsz(uint d) { uint x=EMU_X, y=EMU_Y;\n"
    " if (x==0) return get_local_size(d);\n"
    " return d==0 ? (size_t)x : d==1 ? (size_t)y : d==2 ? (size_t)((uint)get_local_size(0)/(x*y)) : (size_t)1; }\n"
    "EMU emu_lid(uint d) { uint x=EMU_X, y=EMU_Y;\n"
    " if (x==0) return get_local_id(d);\n"
    " uint l=(uint)get_local_id(0);\n"
    " return d==0 ? (size_t)(l%x) : d==1 ? (size_t)((l/x)%y) : d==2 ? (size_t)(l/(x*y)) : (size_t)0; }\n"
    "EMU emu_gid(uint d) { return EMU_X==0 ? get_global_id(d) : get_group_id(d)*emu_lsz(d)+emu_lid(d); }\n"
    "EMU emu_gsz(uint d) { return EMU_X==0 ? get_global_size(d) : get_num_groups(d)*emu_lsz(d); }\n"
    "#define get_local_size(d) emu_lsz(d)\n"
    "#define get_enqueued_local_size(d) emu_lsz(d)\n"
    "#define get_local_id(d) emu_lid(d)\n"
    "#define get_global_id(d) emu_gid(d)\n"
    "#define get_global_size(d) emu_gsz(d)\n"
    "#define get_global_offset(d) ((size_t)0)\n"
    "#define reqd_work_group_size(a,b,c) reqd_work_group_size((a)*(b)*(c),1,1)\n"
    "#define native_powr(x,y) native_powr(fabs(x),y)\n"  // Intel GPUs ignore the base's sign; the CPU gives NaN
    "static inline float __attribute__((overloadable,always_inline)) mad(float a, half b, float c) { return mad(a,(float)b,c); }\n"
    "#line 1\n";

static size_t length_of(const char **parts, const size_t *lengths, uint32_t i) {
    return lengths && lengths[i] ? lengths[i] : strlen(parts[i]);
}

static void dump(const char **parts, const size_t *lengths, uint32_t count, handle program) {
    char path[512];
    const char *folder = getenv("EMULATED_GPU_DUMP");
    if (!folder) return;
    snprintf(path, sizeof path, "%s/%p.cl", folder, program);
    FILE *file = fopen(path, "w");
    for (uint32_t i = 0; file && i < count; i++) fwrite(parts[i], 1, length_of(parts, lengths, i), file);
    if (file) fclose(file);
}

// The CPU runtime refuses clRetainProgram once the user's count reached 0, though kernels live: one reference leaks.
static handle kept(handle program) {
    if (program) BELOW(retain, RETAIN_PROGRAM)(program);
    return program;
}

static handle program_with_source(handle context, uint32_t count, const char **parts, const size_t *lengths, int32_t *error) {
    const char **with = malloc((count + 1) * sizeof *with);
    size_t *sizes = malloc((count + 1) * sizeof *sizes);
    with[0] = PREFIX;
    sizes[0] = sizeof PREFIX - 1;
    for (uint32_t i = 0; i < count; i++) {
        with[i + 1] = parts[i];
        sizes[i + 1] = length_of(parts, lengths, i);
    }
    handle program = BELOW(create_with_source, CREATE_PROGRAM_WITH_SOURCE)(context, count + 1, with, sizes, error);
    free(with);
    free(sizes);
    dump(parts, lengths, count, program);
    return kept(program);
}

static handle program_with_binary(handle context, uint32_t count, const handle *devices, const size_t *lengths,
                                  const unsigned char **binaries, int32_t *status, int32_t *error) {
    return kept(BELOW(create_with_binary, CREATE_PROGRAM_WITH_BINARY)(context, count, devices, lengths, binaries, status, error));
}

static void print_build_log(handle program) {
    handle device = NULL;
    size_t length = 0;
    BELOW(get_info, GET_PROGRAM_INFO)(program, PROGRAM_DEVICES, sizeof device, &device, NULL);
    BELOW(get_build_info, GET_PROGRAM_BUILD_INFO)(program, device, PROGRAM_BUILD_LOG, 0, NULL, &length);
    char *text = calloc(1, length + 1);
    BELOW(get_build_info, GET_PROGRAM_BUILD_INFO)(program, device, PROGRAM_BUILD_LOG, length, text, NULL);
    fprintf(stderr, "[emulated gpu] build failed:\n%.6000s\n", text);
    free(text);
}

static int32_t build(handle program, uint32_t count, const handle *devices, const char *options, void (*done)(handle, void *), void *data) {
    int32_t error = BELOW(build_program, BUILD_PROGRAM)(program, count, devices, options, done, data);
    if (error && loud) print_build_log(program);
    return error;
}

// --- launches --------------------------------------------------------------------------------------------------------

static void print_launch(handle kernel, int32_t error) {
    char name[256] = "";
    BELOW(get_info, GET_KERNEL_INFO)(kernel, KERNEL_FUNCTION_NAME, sizeof name, name, NULL);
    fprintf(stderr, "[emulated gpu] launch of %s: %d\n", name, error);
}

static int32_t launch(handle queue, handle kernel, uint32_t dims, const size_t *offset, const size_t *global, const size_t *local,
                      uint32_t waits, const handle *wait_list, handle *event) {
    enqueue_nd_range enqueue = BELOW(enqueue_nd_range, ENQUEUE_ND_RANGE_KERNEL);
    size_t depth = local && dims > 2 ? local[2] : 1;
    int32_t error;
    if (local && !offset && dims > 1 && local[1] * depth > 1) {
        size_t flat[3] = {local[0] * local[1] * depth, 1, 1};
        size_t whole[3] = {global[0] / local[0] * flat[0], global[1] / local[1], dims > 2 ? global[2] / depth : 1};
        size_t shape[3] = {0, local[0], local[1]};
        error = enqueue(queue, kernel, 3, shape, whole, flat, waits, wait_list, event);
    } else {
        error = enqueue(queue, kernel, dims, offset, global, local, waits, wait_list, event);
    }
    if (error && loud) print_launch(kernel, error);
    return error;
}

// --- the layer's own entry points (cl_khr_icd layers) ----------------------------------------------------------------

int32_t clGetLayerInfo(uint32_t key, size_t room, void *out, size_t *needed) {
    static const uint32_t VERSION = 100;
    static const char NAME[] = "emulated gpu";
    if (key == LAYER_API_VERSION) return answer(&VERSION, sizeof VERSION, room, out, needed);
    if (key == LAYER_NAME) return answer(NAME, sizeof NAME, room, out, needed);
    return INVALID_VALUE;
}

int32_t clInitLayer(uint32_t count, const entry *next, uint32_t *count_out, const entry **out) {
    if (!next || !count_out || !out || count <= ENQUEUE_ND_RANGE_KERNEL) return INVALID_VALUE;
    uint32_t slots = count < SLOTS ? count : SLOTS;
    loud = getenv("EMULATED_GPU_LOG") != NULL;
    below = next;
    memcpy(ours, next, slots * sizeof *ours);
    ours[GET_DEVICE_IDS] = (entry)device_ids;
    ours[GET_DEVICE_INFO] = (entry)device_info;
    ours[CREATE_PROGRAM_WITH_SOURCE] = (entry)program_with_source;
    ours[CREATE_PROGRAM_WITH_BINARY] = (entry)program_with_binary;
    ours[BUILD_PROGRAM] = (entry)build;
    ours[ENQUEUE_ND_RANGE_KERNEL] = (entry)launch;
    *count_out = slots;
    *out = ours;
    return SUCCESS;
}

int32_t clInitLayerWithProperties(uint32_t count, const entry *next, uint32_t *count_out, const entry **out, const void *properties) {
    (void)properties;
    return clInitLayer(count, next, count_out, out);
}

int32_t clDeinitLayer(void) { return SUCCESS; }
