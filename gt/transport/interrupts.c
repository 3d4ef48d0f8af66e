/* Ctrl-C that waits (interrupts.py): a handler between the system and Python's own notes a signal that comes while the main
   thread changes a client's state, and passes it on at the end. To exchange the handler of a user each time takes longer. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <pthread.h>
#include <signal.h>

static volatile sig_atomic_t depth, came; /* bodies that the main thread is in, and whether a signal came meanwhile */
static PyOS_sighandler_t pythons;         /* the handler that was there: Python's, which has the user's function called */
static pthread_t main_thread;

static void on_signal(int number) {
    if (depth) came = 1;
    else pythons(number);
}

/* Be the handler again where Python has set its own since, as it does for each handler of a user; the system's stay. */
static void install(void) {
    PyOS_sighandler_t found = PyOS_getsig(SIGINT);
    if (found == on_signal || found == SIG_DFL || found == SIG_IGN || found == SIG_ERR) return;
    if (pythons == NULL) pythons = found;
    if (found == pythons) PyOS_setsig(SIGINT, on_signal); /* any other may call this one */
}

static PyObject *enter(PyObject *self, PyObject *unused) {
    if (!pthread_equal(pthread_self(), main_thread)) Py_RETURN_NONE;
    if (!depth) {
        install();
        depth = 1;
        if (PyErr_CheckSignals() < 0) { /* one that came before the body is raised before it */
            depth = 0;
            return NULL;
        }
    } else
        depth = depth + 1;
    Py_RETURN_NONE;
}

static PyObject *leave(PyObject *self, PyObject *const *args, Py_ssize_t n) {
    if (!depth || !pthread_equal(pthread_self(), main_thread)) Py_RETURN_NONE;
    depth = depth - 1;
    if (!depth && came) {
        came = 0;
        pythons(SIGINT);
        if (PyErr_CheckSignals() < 0) return NULL;
    }
    Py_RETURN_NONE;
}

static void forked(void) { /* the thread that forked is the main one of the child */
    if (!pthread_equal(pthread_self(), main_thread)) depth = 0;
    main_thread = pthread_self();
}

static PyMethodDef mask_methods[] = {
    {"__enter__", enter, METH_NOARGS, "Ctrl-C waits from now on."},
    {"__exit__", (PyCFunction)(void (*)(void))leave, METH_FASTCALL, "It is raised, if it came."},
    {NULL}};
static PyType_Slot mask_slots[] = {
    {Py_tp_doc, "In the body of a `with` on the main thread Ctrl-C waits for the end."}, {Py_tp_methods, mask_methods}, {0, NULL}};
static PyType_Spec mask_spec = {"gt.transport._interrupts.Uninterrupted", sizeof(PyObject), 0, Py_TPFLAGS_DEFAULT, mask_slots};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "gt.transport._interrupts", SOURCE, -1, NULL};

/* The identity of Python's main thread, which may import this from another. */
static int find_main_thread(void) {
    PyObject *threading = PyImport_ImportModule("threading"), *found = NULL, *ident = NULL;
    if (threading != NULL) found = PyObject_CallMethod(threading, "main_thread", NULL);
    if (found != NULL) ident = PyObject_GetAttrString(found, "ident");
    if (ident != NULL) main_thread = (pthread_t)PyLong_AsUnsignedLong(ident);
    Py_XDECREF(threading);
    Py_XDECREF(found);
    Py_XDECREF(ident);
    return PyErr_Occurred() ? -1 : 0;
}

PyMODINIT_FUNC PyInit__interrupts(void) {
    PyObject *module = PyModule_Create(&definition), *mask = PyType_FromSpec(&mask_spec);
    if (module == NULL || mask == NULL || find_main_thread() < 0 || pthread_atfork(NULL, NULL, forked) != 0 ||
        PyModule_AddObjectRef(module, "Uninterrupted", mask) < 0) {
        Py_CLEAR(module);
        if (!PyErr_Occurred()) PyErr_NoMemory();
    }
    Py_XDECREF(mask);
    return module;
}
