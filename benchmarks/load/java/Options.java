import java.util.LinkedHashMap;
import java.util.Map;

/** The command line: an operation, then --name=value. */
final class Options {
    final String operation;
    private final Map<String, String> values = new LinkedHashMap<>();

    Options(String[] arguments) {
        operation = arguments.length > 0 ? arguments[0] : "";
        for (int i = 1; i < arguments.length; i++) {
            if (!arguments[i].startsWith("--") || !arguments[i].contains("=")) {
                throw new IllegalArgumentException(arguments[i] + " is not --name=value");
            }
            int equals = arguments[i].indexOf('=');
            values.put(arguments[i].substring(2, equals), arguments[i].substring(equals + 1));
        }
    }

    String text(String name, String otherwise) {
        return values.getOrDefault(name, otherwise);
    }

    int number(String name, int otherwise) {
        return values.containsKey(name) ? Integer.parseInt(values.get(name)) : otherwise;
    }

    long milliseconds(String name, double otherwiseSeconds) {
        return Math.round(1000 * (values.containsKey(name) ? Double.parseDouble(values.get(name)) : otherwiseSeconds));
    }

    /** --pids=name:PID,name:PID,… */
    Map<String, Long> pids() {
        Map<String, Long> pids = new LinkedHashMap<>();
        for (String entry : text("pids", "").split(",")) {
            if (!entry.isEmpty()) {
                pids.put(entry.split(":", 2)[0], Long.parseLong(entry.split(":", 2)[1]));
            }
        }
        return pids;
    }

    /** A body that is text, of --size bytes. */
    byte[] body() {
        byte[] body = new byte[number("size", 1024)];
        for (int i = 0; i < body.length; i++) {
            body[i] = (byte) ('a' + i % 16);
        }
        return body;
    }
}
