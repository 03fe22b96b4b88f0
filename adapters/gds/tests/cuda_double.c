/* A libcuda.so.1 without a device: as much of it as kvikio looks for, so that it reads for the host.
 *
 * Pointers have no attributes, which is how kvikio knows memory of the host. What asks for a device, a
 * context or a stream is refused. Names are those of cuda.h, with the versions that its macros add.
 */
#include <stddef.h>
#include <stdlib.h>

enum { SUCCESS = 0, INVALID = 1, NO_MEMORY = 2, NOT_INITIALIZED = 3 };

int cuDriverGetVersion(int *version) { *version = 12040; return SUCCESS; }
int cuDeviceGetCount(int *count) { *count = 0; return SUCCESS; }
int cuGetErrorName(int error, const char **name) { (void)error; *name = "NO_DEVICE"; return SUCCESS; }
int cuGetErrorString(int error, const char **text) { (void)error; *text = "a double"; return SUCCESS; }
int cuMemHostAlloc(void **made, size_t size, unsigned flags) {
    (void)flags;
    return posix_memalign(made, 4096, size) ? NO_MEMORY : SUCCESS;
}
int cuMemFreeHost(void *made) { free(made); return SUCCESS; }
int cuPointerGetAttributes(void) { return NOT_INITIALIZED; }

#define REFUSED(name) int name(void) { return INVALID; }
REFUSED(cuInit)
REFUSED(cuDeviceGet)
REFUSED(cuDeviceGetAttribute)
REFUSED(cuDevicePrimaryCtxRetain)
REFUSED(cuDevicePrimaryCtxRelease_v2)
REFUSED(cuCtxCreate_v2)
REFUSED(cuCtxDestroy_v2)
REFUSED(cuCtxGetCurrent)
REFUSED(cuCtxGetDevice)
REFUSED(cuCtxPopCurrent_v2)
REFUSED(cuCtxPushCurrent_v2)
REFUSED(cuEventCreate)
REFUSED(cuEventDestroy_v2)
REFUSED(cuEventQuery)
REFUSED(cuEventRecord)
REFUSED(cuEventSynchronize)
REFUSED(cuLaunchHostFunc)
REFUSED(cuMemcpyAsync)
REFUSED(cuMemcpyBatchAsync)
REFUSED(cuMemcpyDtoHAsync_v2)
REFUSED(cuMemcpyHtoDAsync_v2)
REFUSED(cuMemGetAddressRange_v2)
REFUSED(cuMemHostRegister_v2)
REFUSED(cuMemHostUnregister)
REFUSED(cuPointerGetAttribute)
REFUSED(cuStreamCreate)
REFUSED(cuStreamDestroy_v2)
REFUSED(cuStreamSynchronize)
