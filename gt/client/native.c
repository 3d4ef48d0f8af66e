/* The client's hot path in C. It does what apply.py does for the common case, an op of known kind on tensors of this thread's
   session; whatever is unusual it leaves to the Python function it was given, which is complete. So there is one place for the
   rules, and this file is speed only: GT works the same without it. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#define MOST 16 /* operands of an op that is issued here */

static PyTypeObject *StreamType, *HandleType;
static PyTypeObject *TensorType, *NodeType, *KnownType, *ScopeType, *PlanType; /* Python's, given by `setup` */
static PyObject *here, *zero, *name_scope, *name_due, *name_module, *nothing;

/* Where the slots of those lie in their objects. */
static Py_ssize_t tensor_handle, tensor_requires_grad, tensor_node, tensor_grad, tensor_hooks, tensor_base, tensor_how, tensor_made;
static const Py_ssize_t *tensor_empty[] = {&tensor_grad, &tensor_hooks, &tensor_base, &tensor_how, &tensor_made};
static Py_ssize_t known_number, known_out, known_outs, known_differentiable, known_pulls, known_view, known_unseen;
static Py_ssize_t scope_session, scope_kinds, scope_origin, scope_grad;
static Py_ssize_t plan_keep, plan_keeps_output;

#define SLOT(object, offset) (*(PyObject **)((char *)(object) + (offset)))

/* What of a session an op needs. */
typedef struct {
    PyObject_HEAD
    PyObject *code;                  /* the buffer of instructions */
    PyObject *asked_code, *asked_at; /* the line that asked for each of the last results */
    PyObject *user;                  /* globals of the user's module that asked last */
    Py_ssize_t limit;                /* length of `code` at which `due` is called */
    long long last;                  /* the id given last */
    char ended;                      /* frees go nowhere */
} Stream;

typedef struct {
    PyObject_HEAD
    PyObject *id, *spec, *session;
    PyObject *source; /* of the value of a view: the id of the value of the last base; else NULL */
} Handle;

/* Streams */

static PyObject *next_id(Stream *self, PyObject *unused) { return PyLong_FromLongLong(++self->last); }

static PyObject *stream_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    Stream *self = (Stream *)type->tp_alloc(type, 0);
    return (PyObject *)self;
}

static int stream_traverse(Stream *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->code);
    Py_VISIT(self->asked_code);
    Py_VISIT(self->asked_at);
    Py_VISIT(self->user);
    return 0;
}

static int stream_clear(Stream *self) {
    Py_CLEAR(self->code);
    Py_CLEAR(self->asked_code);
    Py_CLEAR(self->asked_at);
    Py_CLEAR(self->user);
    return 0;
}

static void stream_dealloc(Stream *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    stream_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef stream_methods[] = {
    {"next_id", (PyCFunction)next_id, METH_NOARGS, "A name for another result."}, {NULL}};
static PyMemberDef stream_members[] = {
    {"code", T_OBJECT, offsetof(Stream, code), 0},
    {"asked_code", T_OBJECT, offsetof(Stream, asked_code), 0},
    {"asked_at", T_OBJECT, offsetof(Stream, asked_at), 0},
    {"user", T_OBJECT, offsetof(Stream, user), 0},
    {"limit", T_PYSSIZET, offsetof(Stream, limit), 0},
    {"ended", T_BOOL, offsetof(Stream, ended), 0},
    {"last", T_LONGLONG, offsetof(Stream, last), READONLY},
    {NULL}};
static PyType_Slot stream_slots[] = {
    {Py_tp_doc, "What of a session an op needs."},
    {Py_tp_new, stream_new},
    {Py_tp_traverse, stream_traverse},
    {Py_tp_clear, stream_clear},
    {Py_tp_dealloc, stream_dealloc},
    {Py_tp_methods, stream_methods},
    {Py_tp_members, stream_members},
    {0, NULL}};
static PyType_Spec stream_spec = {
    "gt.client._native.Stream", sizeof(Stream), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, stream_slots};

/* Handles */

static PyObject *handle_make(PyObject *id, PyObject *spec, PyObject *session) {
    Handle *self = PyObject_New(Handle, HandleType);
    if (self == NULL) return NULL;
    self->id = Py_NewRef(id);
    self->spec = Py_NewRef(spec);
    self->session = Py_NewRef(session);
    self->source = NULL;
    return (PyObject *)self;
}

static PyObject *handle_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *id, *spec, *session;
    if (!PyArg_ParseTuple(args, "O!OO:Handle", &PyLong_Type, &id, &spec, &session)) return NULL;
    if (!PyObject_TypeCheck(session, StreamType)) {
        PyErr_SetString(PyExc_TypeError, "a Handle belongs to a session");
        return NULL;
    }
    return handle_make(id, spec, session);
}

static void handle_dealloc(Handle *self) {
    PyTypeObject *type = Py_TYPE(self);
    Stream *stream = (Stream *)self->session;
    if (!stream->ended && stream->code != NULL) { /* the free is an instruction like others */
        PyObject *instruction = PyTuple_Pack(2, zero, self->id);
        if (instruction == NULL || PyList_Append(stream->code, instruction) < 0) PyErr_WriteUnraisable((PyObject *)type);
        Py_XDECREF(instruction);
    }
    Py_DECREF(self->id);
    Py_DECREF(self->spec);
    Py_DECREF(self->session);
    Py_XDECREF(self->source);
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyMemberDef handle_members[] = { /* T_OBJECT_EX, which is never NULL here, is what the interpreter reads fast */
    {"id", T_OBJECT_EX, offsetof(Handle, id), READONLY},
    {"spec", T_OBJECT_EX, offsetof(Handle, spec), READONLY},
    {"session", T_OBJECT_EX, offsetof(Handle, session), READONLY},
    {"source", T_OBJECT, offsetof(Handle, source), 0},
    {NULL}};
static PyType_Slot handle_slots[] = {
    {Py_tp_doc, "A value on the workers."}, {Py_tp_new, handle_new}, {Py_tp_dealloc, handle_dealloc},
    {Py_tp_members, handle_members}, {0, NULL}};
static PyType_Spec handle_spec = {"gt.client._native.Handle", sizeof(Handle), 0, Py_TPFLAGS_DEFAULT, handle_slots};

/* The user's line */

/* The innermost frame of the user's code, whose module the stream then knows. */
static PyFrameObject *users(Stream *stream, PyFrameObject *frame) {
    Py_INCREF(frame);
    for (;;) {
        PyObject *globals = PyFrame_GetGlobals(frame);
        PyObject *name = PyDict_GetItemWithError(globals, name_module);
        int ours = name != NULL && PyUnicode_Check(name) && PyUnicode_GET_LENGTH(name) > 3 &&
                   PyUnicode_READ_CHAR(name, 0) == 'g' && PyUnicode_READ_CHAR(name, 1) == 't' && PyUnicode_READ_CHAR(name, 2) == '.';
        PyFrameObject *back = ours ? PyFrame_GetBack(frame) : NULL;
        if (back == NULL) {
            Py_XSETREF(stream->user, globals);
            return frame;
        }
        Py_DECREF(globals);
        Py_SETREF(frame, back);
    }
}

/* Note for a result the line that asked for it. */
static int note(Stream *stream, PyObject *origin, Py_ssize_t slot) {
    PyObject *code, *at;
    if (origin != Py_None) {
        code = Py_NewRef(PyTuple_GET_ITEM(origin, 0));
        at = Py_NewRef(PyTuple_GET_ITEM(origin, 1));
    } else {
        PyFrameObject *frame = PyEval_GetFrame();
        if (frame == NULL) return 0;
        PyObject *globals = PyFrame_GetGlobals(frame);
        int known = globals == stream->user;
        Py_DECREF(globals);
        if (known)
            Py_INCREF(frame);
        else if ((frame = users(stream, frame)) == NULL)
            return -1;
        code = (PyObject *)PyFrame_GetCode(frame);
        at = PyLong_FromLong(PyFrame_GetLasti(frame));
        Py_DECREF(frame);
        if (at == NULL) {
            Py_DECREF(code);
            return -1;
        }
    }
    if (PyList_SetItem(stream->asked_code, slot, code) < 0) {
        Py_DECREF(at);
        return -1;
    }
    return PyList_SetItem(stream->asked_at, slot, at);
}

/* Views (views.py) */

/* Whether a tensor is a view of one that has had another value since: `made` has the id of the base's value in place 2. */
static int stale(PyObject *tensor) {
    for (;;) {
        PyObject *base = SLOT(tensor, tensor_base), *made = SLOT(tensor, tensor_made);
        if (base == Py_None || !PyTuple_Check(made) || PyTuple_GET_SIZE(made) < 3) return 0;
        Handle *handle = (Handle *)SLOT(base, tensor_handle);
        if (handle == NULL || Py_TYPE(handle) != HandleType) return 0;
        if (handle->id != PyTuple_GET_ITEM(made, 2)) return 1;
        tensor = base;
    }
}

/* A field of tensors that is brought up to date before it is read: handle, requires_grad and node of a view follow its base. */
typedef struct {
    PyObject_HEAD
    Py_ssize_t offset;
    PyObject *renew, *write; /* renew(tensor); write(tensor, value): what setting the field of a view does */
} Field;

static PyObject *field_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *member, *renew, *write;
    if (!PyArg_ParseTuple(args, "O!OO:Field", &PyMemberDescr_Type, &member, &renew, &write)) return NULL;
    Field *self = (Field *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->offset = ((PyMemberDescrObject *)member)->d_member->offset;
    self->renew = Py_NewRef(renew);
    self->write = Py_NewRef(write);
    return (PyObject *)self;
}

static PyObject *field_get(Field *self, PyObject *tensor, PyObject *type) {
    if (tensor == NULL || tensor == Py_None) return Py_NewRef((PyObject *)self);
    if (SLOT(tensor, tensor_base) != Py_None && stale(tensor)) {
        PyObject *done = PyObject_CallOneArg(self->renew, tensor);
        if (done == NULL) return NULL;
        Py_DECREF(done);
    }
    return Py_NewRef(SLOT(tensor, self->offset));
}

static int field_set(Field *self, PyObject *tensor, PyObject *value) {
    if (value == NULL) {
        PyErr_SetString(PyExc_AttributeError, "a field of a tensor cannot be deleted");
        return -1;
    }
    if (SLOT(tensor, tensor_base) != Py_None) {
        PyObject *done = PyObject_CallFunctionObjArgs(self->write, tensor, value, NULL);
        if (done == NULL) return -1;
        Py_DECREF(done);
        return 0;
    }
    Py_XSETREF(SLOT(tensor, self->offset), Py_NewRef(value));
    return 0;
}

static int field_traverse(Field *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->renew);
    Py_VISIT(self->write);
    return 0;
}

static int field_clear(Field *self) {
    Py_CLEAR(self->renew);
    Py_CLEAR(self->write);
    return 0;
}

static void field_dealloc(Field *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    field_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyType_Slot field_slots[] = {
    {Py_tp_doc, "A field of tensors that is brought up to date before it is read."}, {Py_tp_new, field_new},
    {Py_tp_descr_get, field_get}, {Py_tp_descr_set, field_set}, {Py_tp_traverse, field_traverse}, {Py_tp_clear, field_clear},
    {Py_tp_dealloc, field_dealloc}, {0, NULL}};
static PyType_Spec field_spec = {
    "gt.client._native.Field", sizeof(Field), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, field_slots};

/* A tensor, filled slot by slot: its own constructor would look for the default of each field. Like that one, it leaves to the
   garbage collector only what may be part of a cycle. */
static PyObject *tensor_new(PyObject *handle, PyObject *requires_grad, PyObject *node) {
    PyObject *self = PyObject_GC_New(PyObject, TensorType);
    if (self == NULL) return NULL;
    memset((char *)self + sizeof(PyObject), 0, TensorType->tp_basicsize - sizeof(PyObject));
    for (size_t i = 0; i < sizeof(tensor_empty) / sizeof(*tensor_empty); i++)
        SLOT(self, *tensor_empty[i]) = Py_NewRef(Py_None);
    SLOT(self, tensor_handle) = Py_NewRef(handle);
    SLOT(self, tensor_requires_grad) = Py_NewRef(requires_grad);
    SLOT(self, tensor_node) = Py_NewRef(node);
    if (node != Py_None || PyType_IS_GC(Py_TYPE(handle))) PyObject_GC_Track(self);
    return self;
}

/* The tape: a tensor with a node behind it. */
static PyObject *taped(PyObject *known, PyObject *plan, PyObject *const *operands, Py_ssize_t n, int mask, PyObject *out,
                       PyObject *scope, PyObject *id) {
    PyObject *keep = SLOT(plan, plan_keep), *kept = SLOT(plan, plan_keeps_output) == Py_True ? out : Py_None;
    PyObject *inputs = PyList_New(n), *edges = PyTuple_New(n), *node = NULL, *result = NULL;
    if (inputs == NULL || edges == NULL) goto done;
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *operand = operands[i], *input = operand, *edge = Py_None;
        if (PyObject_TypeCheck(operand, TensorType)) {
            Handle *handle = (Handle *)SLOT(operand, tensor_handle);
            input = PyTuple_GET_ITEM(keep, i) == Py_True ? (PyObject *)handle : handle->spec;
            if (mask >> i & 1) {
                edge = SLOT(operand, tensor_node);
                if (edge == Py_None) edge = operand;
            }
        }
        PyList_SET_ITEM(inputs, i, Py_NewRef(input));
        PyTuple_SET_ITEM(edges, i, Py_NewRef(edge));
    }
    PyObject *parts[] = {known, plan, inputs, edges, kept, scope, id};
    node = PyObject_Vectorcall((PyObject *)NodeType, parts, 7, NULL);
    if (node == NULL) goto done;
    result = tensor_new(out, Py_True, node);
done:
    Py_XDECREF(inputs);
    Py_XDECREF(edges);
    Py_XDECREF(node);
    return result;
}

/* An op on these operands. NotImplemented where that is not for here, and nothing has been done. */
static PyObject *issue(PyObject *row, PyObject *const *operands, Py_ssize_t n, PyObject *statics) {
    if (n < 1 || n > MOST) return Py_NewRef(nothing);
    PyObject *scope = PyObject_GetAttr(here, name_scope), *session = NULL, *key = NULL, *result = NULL;
    PyObject *id = NULL, *instruction = NULL, *out = NULL;
    if (scope == NULL) return NULL;
    if (Py_TYPE(scope) != ScopeType) goto unusual;
    session = SLOT(scope, scope_session);
    int mask = 0;
    key = PyTuple_New(1 + n + (statics != NULL));
    if (key == NULL) goto done;
    PyTuple_SET_ITEM(key, 0, Py_NewRef(row));
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *operand = operands[i], *part;
        if (PyObject_TypeCheck(operand, TensorType)) {
            Handle *handle = (Handle *)SLOT(operand, tensor_handle);
            if (handle == NULL || Py_TYPE(handle) != HandleType || handle->session != session) goto unusual;
            if (SLOT(operand, tensor_base) != Py_None && stale(operand)) goto unusual;
            part = handle->spec;
            if (SLOT(operand, tensor_requires_grad) == Py_True) mask |= 1 << i;
        } else if (PyFloat_CheckExact(operand) || PyLong_CheckExact(operand) || PyBool_Check(operand)) {
            part = (PyObject *)Py_TYPE(operand);
        } else {
            goto unusual;
        }
        PyTuple_SET_ITEM(key, 1 + i, Py_NewRef(part));
    }
    if (statics != NULL) PyTuple_SET_ITEM(key, 1 + n, Py_NewRef(statics));
    PyObject *known = PyDict_GetItemWithError(SLOT(scope, scope_kinds), key), *plan = NULL;
    if (known == NULL && PyErr_Occurred()) goto done;
    if (known == NULL || PyTuple_GET_SIZE(SLOT(known, known_outs)) != 1) goto unusual;
    if (mask && SLOT(scope, scope_grad) == Py_True) {
        if (SLOT(known, known_differentiable) == Py_True) {
            PyObject *bits = PyLong_FromLong(mask);
            plan = bits ? PyDict_GetItemWithError(SLOT(known, known_pulls), bits) : NULL;
            Py_XDECREF(bits);
            if (plan == NULL && PyErr_Occurred()) goto done;
            if (plan == NULL || !PyBool_Check(SLOT(plan, plan_keeps_output))) goto unusual;
        } else if (statics != NULL) {
            goto unusual; /* perhaps it is to be taken apart into ops that are differentiable */
        }
    }
    Py_INCREF(known);
    Py_XINCREF(plan);
    Stream *stream = (Stream *)session;
    long long number = ++stream->last;
    id = PyLong_FromLongLong(number);
    instruction = PyTuple_New(2 + n);
    if (id == NULL || instruction == NULL) goto issued;
    PyTuple_SET_ITEM(instruction, 0, Py_NewRef(SLOT(known, known_number)));
    PyTuple_SET_ITEM(instruction, 1, Py_NewRef(id));
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *operand = operands[i];
        int tensor = PyObject_TypeCheck(operand, TensorType);
        PyTuple_SET_ITEM(instruction, 2 + i, Py_NewRef(tensor ? ((Handle *)SLOT(operand, tensor_handle))->id : operand));
    }
    if (PyList_Append(stream->code, instruction) < 0) goto issued;
    if (note(stream, SLOT(scope, scope_origin), number & (PyList_GET_SIZE(stream->asked_code) - 1)) < 0) goto issued;
    if (PyList_GET_SIZE(stream->code) >= stream->limit) {
        PyObject *sent = PyObject_CallMethodNoArgs(session, name_due);
        if (sent == NULL) goto issued;
        Py_DECREF(sent);
    }
    out = handle_make(id, SLOT(known, known_out), session);
    if (out == NULL) goto issued;
    result = plan != NULL ? taped(known, plan, operands, n, mask, out, scope, id)
                          : tensor_new(out, Py_False, Py_None);
    if (result != NULL && SLOT(known, known_view) == Py_True) {
        PyObject *how = mask && SLOT(scope, scope_grad) != Py_True ? SLOT(known, known_unseen) : known;
        Py_XSETREF(SLOT(result, tensor_base), Py_NewRef(operands[0]));
        Py_XSETREF(SLOT(result, tensor_how), Py_NewRef(how));
        Py_XSETREF(SLOT(result, tensor_made), Py_NewRef(instruction));
        Handle *from = (Handle *)SLOT(operands[0], tensor_handle);
        PyObject *source = from->source == NULL || from->source == Py_None ? from->id : from->source;
        Py_XSETREF(((Handle *)out)->source, Py_NewRef(source));
    }
issued:
    Py_DECREF(known);
    Py_XDECREF(plan);
    goto done;
unusual:
    result = Py_NewRef(nothing);
done:
    Py_XDECREF(out);
    Py_XDECREF(instruction);
    Py_XDECREF(id);
    Py_XDECREF(key);
    Py_DECREF(scope);
    return result;
}

/* The function of a row, and a method of tensors; `python` is the same in Python. */
typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *row, *python;
} Op;

static PyObject *op_call(Op *self, PyObject *const *args, size_t nargsf, PyObject *names) {
    if (names == NULL) {
        PyObject *result = issue(self->row, args, PyVectorcall_NARGS(nargsf), NULL);
        if (result != nothing) return result;
        Py_DECREF(result);
    }
    return PyObject_Vectorcall(self->python, args, nargsf, names);
}

static PyObject *op_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *row, *python;
    if (!PyArg_ParseTuple(args, "OO:Op", &row, &python)) return NULL;
    Op *self = (Op *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->call = (vectorcallfunc)op_call;
    self->row = Py_NewRef(row);
    self->python = Py_NewRef(python);
    return (PyObject *)self;
}

static int op_traverse(Op *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->row);
    Py_VISIT(self->python);
    return 0;
}

static int op_clear(Op *self) {
    Py_CLEAR(self->row);
    Py_CLEAR(self->python);
    return 0;
}

static void op_dealloc(Op *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    op_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *op_bind(PyObject *self, PyObject *object, PyObject *type) {
    return object == NULL || object == Py_None ? Py_NewRef(self) : PyMethod_New(self, object);
}

static PyMemberDef op_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Op, call), READONLY},
    {"__wrapped__", T_OBJECT, offsetof(Op, python), READONLY},
    {NULL}};
static PyType_Slot op_slots[] = {
    {Py_tp_doc, "The function of a row."}, {Py_tp_new, op_new}, {Py_tp_traverse, op_traverse}, {Py_tp_clear, op_clear},
    {Py_tp_dealloc, op_dealloc}, {Py_tp_call, PyVectorcall_Call}, {Py_tp_descr_get, op_bind}, {Py_tp_members, op_members},
    {0, NULL}};
static PyType_Spec op_spec = {
    "gt.client._native.Op", sizeof(Op), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR, op_slots};

/* apply(row, operands, statics): the result, or NotImplemented where it is Python's to do. */
static PyObject *apply(PyObject *module, PyObject *const *args, Py_ssize_t n) {
    if (n != 3 || !PyTuple_CheckExact(args[1])) return Py_NewRef(nothing);
    return issue(args[0], ((PyTupleObject *)args[1])->ob_item, PyTuple_GET_SIZE(args[1]), args[2]);
}

/* A trace as it comes in practice (Raw in traces.py): what each number of its instructions is to be, laid end to end. */
enum { TOKEN, MADE, GIVEN, SAME, FIXED, HOLE, REST };

typedef struct {
    char what;
    int which; /* MADE, GIVEN: the register it names; SAME: the register it must equal; FIXED: a value; HOLE: which */
} Place;

typedef struct {
    PyObject_HEAD
    PyObject *number, *values;   /* the trace's, and the numbers that stay the same */
    Py_ssize_t length, places;   /* pieces, and numbers in them */
    int registers, made, holes, live, rest;
    Place *place;
    int *alive; /* the registers of results that live on */
} Form;

static PyObject *form_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *number, *places, *values, *alive;
    Py_ssize_t length;
    int made, given, holes;
    if (!PyArg_ParseTuple(args, "OnO!O!O!iii:Form", &number, &length, &PyList_Type, &places, &PyTuple_Type, &values,
                          &PyTuple_Type, &alive, &made, &given, &holes))
        return NULL;
    Form *self = (Form *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->number = Py_NewRef(number);
    self->values = Py_NewRef(values);
    self->length = length;
    self->made = made;
    self->registers = made + given;
    self->holes = holes;
    self->places = PyList_GET_SIZE(places);
    self->live = (int)PyTuple_GET_SIZE(alive);
    self->place = PyMem_Calloc(self->places + 1, sizeof(Place));
    self->alive = PyMem_Calloc(self->live + 1, sizeof(int));
    if (self->place == NULL || self->alive == NULL) goto failed;
    for (Py_ssize_t i = 0; i < self->places; i++) {
        int what, which;
        if (!PyArg_ParseTuple(PyList_GET_ITEM(places, i), "ii", &what, &which)) goto failed;
        int bound = what == FIXED ? (int)PyTuple_GET_SIZE(values) : what == HOLE ? holes : self->registers;
        if (what < TOKEN || what > REST || which < 0 || (what != TOKEN && what != REST && which >= bound)) {
            PyErr_SetString(PyExc_ValueError, "a place outside of the form");
            goto failed;
        }
        self->place[i] = (Place){(char)what, which};
        self->rest += what == REST;
    }
    for (int i = 0; i < self->live; i++) {
        self->alive[i] = (int)PyLong_AsLong(PyTuple_GET_ITEM(alive, i));
        if (self->alive[i] < 0 || self->alive[i] >= made) {
            if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "a result outside of the form");
            goto failed;
        }
    }
    return (PyObject *)self;
failed:
    Py_DECREF(self);
    return NULL;
}

static void form_dealloc(Form *self) {
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(self->number);
    Py_XDECREF(self->values);
    PyMem_Free(self->place);
    PyMem_Free(self->alive);
    type->tp_free(self);
    Py_DECREF(type);
}

static int equal(PyObject *a, PyObject *b) { return a == b ? 1 : PyObject_RichCompareBool(a, b, Py_EQ); }

/* Whether inputs differ from each other and are older than all results, as ids grow. */
static int apart(PyObject **registers, int made, int n) {
    long long first = LLONG_MAX;
    for (int i = 0; i < n; i++)
        if (!PyLong_CheckExact(registers[i])) return 0;
    for (int i = 0; i < made; i++) {
        long long id = PyLong_AsLongLong(registers[i]);
        if (id == -1 && PyErr_Occurred()) return -1;
        if (id < first) first = id;
    }
    PyObject *seen = PySet_New(NULL);
    if (seen == NULL) return -1;
    int fine = 1;
    for (int i = made; i < n && fine == 1; i++) {
        long long id = PyLong_AsLongLong(registers[i]);
        if ((id == -1 && PyErr_Occurred()) || PySet_Add(seen, registers[i]) < 0)
            fine = -1;
        else if (id >= first)
            fine = 0;
    }
    if (fine == 1 && PySet_GET_SIZE(seen) != n - made) fine = 0;
    Py_DECREF(seen);
    return fine;
}

/* call(pieces): the call that stands for these pieces and what is still to be freed; None where they are not of this form. */
static PyObject *form_call(Form *self, PyObject *pieces) {
    if (!PyList_CheckExact(pieces) || PyList_GET_SIZE(pieces) != self->length) Py_RETURN_NONE;
    PyObject **registers = PyMem_Calloc(self->registers + self->holes + 1, sizeof(PyObject *)), *result = NULL;
    PyObject *rest = PyTuple_New(self->rest), *call = NULL;
    if (registers == NULL || rest == NULL) goto done;
    PyObject **holes = registers + self->registers;
    Py_ssize_t at = 0, left = 0;
    for (Py_ssize_t i = 0; i < self->length; i++) {
        PyObject *piece = PyList_GET_ITEM(pieces, i);
        Py_ssize_t n = PyTuple_GET_SIZE(piece);
        if (at + n > self->places || self->place[at].what != TOKEN) goto other;
        for (Py_ssize_t k = 1; k < n; k++) {
            PyObject *value = PyTuple_GET_ITEM(piece, k);
            Place place = self->place[at + k];
            int same = 1;
            switch (place.what) {
                case MADE: case GIVEN: registers[place.which] = value; break;
                case SAME: same = registers[place.which] != NULL ? equal(value, registers[place.which]) : 0; break;
                case FIXED: same = equal(value, PyTuple_GET_ITEM(self->values, place.which)); break;
                case HOLE:
                    if (holes[place.which] == NULL) holes[place.which] = value;
                    else same = equal(value, holes[place.which]);
                    break;
                case REST: PyTuple_SET_ITEM(rest, left++, Py_NewRef(value)); break;
                default: goto other; /* a longer instruction than the form's */
            }
            if (same < 0) goto done;
            if (!same) goto other;
        }
        at += n;
    }
    if (at != self->places) goto other;
    int fine = apart(registers, self->made, self->registers);
    if (fine < 0) goto done;
    if (!fine) goto other;
    int given = self->registers - self->made;
    call = PyTuple_New(1 + self->live + given + self->holes);
    if (call == NULL) goto done;
    PyTuple_SET_ITEM(call, 0, Py_NewRef(self->number));
    for (int i = 0; i < self->live; i++) PyTuple_SET_ITEM(call, 1 + i, Py_NewRef(registers[self->alive[i]]));
    for (int i = 0; i < given + self->holes; i++) PyTuple_SET_ITEM(call, 1 + self->live + i, Py_NewRef(registers[self->made + i]));
    result = PyTuple_Pack(2, call, rest);
    goto done;
other:
    result = Py_NewRef(Py_None);
done:
    Py_XDECREF(call);
    Py_XDECREF(rest);
    PyMem_Free(registers);
    return result;
}

static PyMethodDef form_methods[] = {
    {"call", (PyCFunction)form_call, METH_O, "The call that stands for these pieces and what is still to be freed, or None."},
    {NULL}};
static PyType_Slot form_slots[] = {
    {Py_tp_doc, "A trace as it comes in practice."}, {Py_tp_new, form_new}, {Py_tp_dealloc, form_dealloc},
    {Py_tp_methods, form_methods}, {0, NULL}};
static PyType_Spec form_spec = {"gt.client._native.Form", sizeof(Form), 0, Py_TPFLAGS_DEFAULT, form_slots};

/* Setting up */

static int slot_of(PyTypeObject *type, const char *name, Py_ssize_t *offset) {
    PyObject *descriptor = PyObject_GetAttrString((PyObject *)type, name);
    if (descriptor == NULL) return -1;
    int found = Py_TYPE(descriptor) == &PyMemberDescr_Type && ((PyMemberDescrObject *)descriptor)->d_member->type == T_OBJECT_EX;
    if (found)
        *offset = ((PyMemberDescrObject *)descriptor)->d_member->offset;
    else
        PyErr_Format(PyExc_TypeError, "%s.%s is no slot: GT_NATIVE=0 does without the part in C", type->tp_name, name);
    Py_DECREF(descriptor);
    return found ? 0 : -1;
}

static PyObject *setup(PyObject *module, PyObject *args) {
    PyObject *where;
    if (!PyArg_ParseTuple(args, "O!O!O!O!O!O:setup", &PyType_Type, &TensorType, &PyType_Type, &NodeType, &PyType_Type,
                          &KnownType, &PyType_Type, &ScopeType, &PyType_Type, &PlanType, &where))
        return NULL;
    struct { PyTypeObject *type; const char *name; Py_ssize_t *offset; } slots[] = {
        {TensorType, "handle", &tensor_handle}, {TensorType, "requires_grad", &tensor_requires_grad},
        {TensorType, "node", &tensor_node}, {TensorType, "grad", &tensor_grad}, {TensorType, "hooks", &tensor_hooks},
        {TensorType, "base", &tensor_base}, {TensorType, "how", &tensor_how},
        {TensorType, "made", &tensor_made}, {KnownType, "view", &known_view}, {KnownType, "unseen", &known_unseen}, {KnownType, "number", &known_number}, {KnownType, "out", &known_out},
        {KnownType, "outs", &known_outs}, {KnownType, "differentiable", &known_differentiable},
        {KnownType, "pulls", &known_pulls}, {ScopeType, "session", &scope_session}, {ScopeType, "kinds", &scope_kinds},
        {ScopeType, "origin", &scope_origin}, {ScopeType, "grad", &scope_grad}, {PlanType, "keep", &plan_keep},
        {PlanType, "keeps_output", &plan_keeps_output}};
    for (size_t i = 0; i < sizeof(slots) / sizeof(slots[0]); i++)
        if (slot_of(slots[i].type, slots[i].name, slots[i].offset) < 0) return NULL;
    PyTypeObject *types[] = {TensorType, NodeType, KnownType, ScopeType, PlanType};
    for (int i = 0; i < 5; i++) Py_INCREF(types[i]); /* for good: this module is never unloaded */
    here = Py_NewRef(where);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"apply", (PyCFunction)(void (*)(void))apply, METH_FASTCALL, "An op, or NotImplemented where it is Python's to do."},
    {"setup", setup, METH_VARARGS, "Tell of the types and the place of this thread's scope."},
    {NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "gt.client._native", NULL, -1, methods};

PyMODINIT_FUNC PyInit__native(void) {
    PyObject *module = PyModule_Create(&definition), *op = NULL, *form = NULL, *field = NULL;
    if (module == NULL) return NULL;
    zero = PyLong_FromLong(0);
    nothing = Py_NewRef(Py_NotImplemented);
    name_scope = PyUnicode_InternFromString("scope");
    name_due = PyUnicode_InternFromString("due");
    name_module = PyUnicode_InternFromString("__name__");
    StreamType = (PyTypeObject *)PyType_FromSpec(&stream_spec);
    HandleType = (PyTypeObject *)PyType_FromSpec(&handle_spec);
    op = PyType_FromSpec(&op_spec);
    form = PyType_FromSpec(&form_spec);
    field = PyType_FromSpec(&field_spec);
    if (zero == NULL || name_scope == NULL || name_due == NULL || name_module == NULL || StreamType == NULL ||
        HandleType == NULL || op == NULL || form == NULL || field == NULL || PyModule_AddObjectRef(module, "Form", form) < 0 ||
        PyModule_AddObjectRef(module, "Field", field) < 0 ||
        PyModule_AddObjectRef(module, "Stream", (PyObject *)StreamType) < 0 ||
        PyModule_AddObjectRef(module, "Handle", (PyObject *)HandleType) < 0 || PyModule_AddObjectRef(module, "Op", op) < 0) {
        Py_XDECREF(op);
        Py_XDECREF(form);
        Py_XDECREF(field);
        Py_DECREF(module);
        return NULL;
    }
    Py_DECREF(op);
    Py_DECREF(form);
    Py_DECREF(field);
    return module;
}
