import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.filter.FilterFactory;
import org.apache.rocketmq.filter.expression.EvaluationContext;
import org.apache.rocketmq.filter.expression.Expression;
import org.apache.rocketmq.filter.expression.MQFilterException;

/**
 * Evaluates each of {"expressions": [...]} with each of {"properties": [{...}]} of the file named first, and writes the
 * results to the file named second, a line for each expression: one letter for each properties, T (true), F (false),
 * N (null) or E (threw); or X alone where the expression does not compile.
 */
public class OriginalFilter {

    public static void main(String[] args) throws Exception {
        JSONObject questions = JSON.parseObject(Files.readString(Path.of(args[0])));
        JSONArray properties = questions.getJSONArray("properties");
        StringBuilder results = new StringBuilder();
        for (Object expression : questions.getJSONArray("expressions")) {
            results.append(line((String) expression, properties)).append('\n');
        }
        Files.writeString(Path.of(args[1]), results);
    }

    private static String line(String expression, JSONArray properties) {
        Expression compiled;
        try {
            compiled = FilterFactory.INSTANCE.get("SQL92").compile(expression);
        } catch (MQFilterException refused) {
            return "X";
        }
        StringBuilder letters = new StringBuilder();
        for (int i = 0; i < properties.size(); i++) {
            letters.append(letter(compiled, properties.getJSONObject(i)));
        }
        return letters.toString();
    }

    private static char letter(Expression compiled, JSONObject properties) {
        Object value;
        try {
            value = compiled.evaluate(new EvaluationContext() {
                @Override
                public Object get(String name) {
                    return properties.getString(name);
                }

                @Override
                public Map<String, Object> keyValues() {
                    return new HashMap<>(properties);
                }
            });
        } catch (Exception thrown) {
            return 'E';
        }
        return value == null ? 'N' : value == Boolean.TRUE ? 'T' : value == Boolean.FALSE ? 'F' : '?';
    }
}
